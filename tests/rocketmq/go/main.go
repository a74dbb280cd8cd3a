// RocketMQ's client for Go with any name server: sends messages, consumes them, and leaves when all have arrived and
// its standard input ends.
// Usage: program 127.0.0.1:9876 topic group messages [accessKey secretKey]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 2 * time.Minute

func say(kind string, fields map[string]any) {
	fields["kind"] = kind
	line, _ := json.Marshal(fields)
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	servers, topic, group := []string{os.Args[1]}, os.Args[2], os.Args[3]
	messages, err := strconv.Atoi(os.Args[4])
	must(err)
	rlog.SetLogLevel("error")
	account := primitive.Credentials{}
	if len(os.Args) > 5 {
		account = primitive.Credentials{AccessKey: os.Args[5], SecretKey: os.Args[6]}
	}

	sender, err := rocketmq.NewProducer(
		producer.WithNameServer(servers), producer.WithGroupName(group+"-producers"), producer.WithCredentials(account))
	must(err)
	must(sender.Start())
	for i := 0; i < messages; i++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("message %d", i))).WithTag("go")
		message.WithKeys([]string{fmt.Sprintf("key-%d", i)})
		result, err := sender.SendSync(context.Background(), message)
		must(err)
		say("sent", map[string]any{
			"status": result.Status, "msgId": result.MsgID, "queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset})
	}

	came := make(chan *primitive.MessageExt, messages)
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers), consumer.WithGroupName(group), consumer.WithCredentials(account),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(reader.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "go"},
		func(_ context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range found {
				came <- message
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(reader.Start())
	deadline := time.After(patience)
	for i := 0; i < messages; i++ {
		select {
		case message := <-came:
			say("consumed", map[string]any{
				"body": string(message.Body), "keys": message.GetKeys(), "tags": message.GetTags(), "msgId": message.MsgId,
				"queueId": message.Queue.QueueId, "queueOffset": message.QueueOffset})
		case <-deadline:
			must(fmt.Errorf("only %d of %d messages came", i, messages))
		}
	}
	_, err = io.Copy(io.Discard, os.Stdin) // a message counts as consumed some time after it arrived
	must(err)
	must(reader.Shutdown())
	must(sender.Shutdown())
}
