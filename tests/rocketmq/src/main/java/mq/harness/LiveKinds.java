package mq.harness;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Sends every kind of message with the real client, to topics created with the admin tool. */
final class LiveKinds {
    private static final int QUEUES = 4;
    private static final List<String> ODD_NAMES = List.of("2013", "-", "%", "|", "_", "Odd", "odd", "a-%_|topic", "null",
        "x".repeat(127));

    private final BrokerController broker;
    private final DefaultMQAdminExt admin;
    private final String namesrv;
    private final String address;
    private final List<Callable<Boolean>> awaited = new ArrayList<>();
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private DefaultMQProducer producer;

    LiveKinds(BrokerController broker, DefaultMQAdminExt admin, String namesrv, String address) {
        this.broker = broker;
        this.admin = admin;
        this.namesrv = namesrv;
        this.address = address;
    }

    /** Sends all of these kinds; returns when the broker has processed them. */
    void produce(List<String> kinds) throws Exception {
        producer = new DefaultMQProducer("producing");
        start(producer);
        for (String kind : kinds) {
            switch (kind) {
                case "single" -> single();
                case "batch" -> batch();
                case "compressed" -> compressed();
                case "delayed" -> delayed();
                case "timed" -> timed();
                case "transactional" -> transactional();
                case "retried" -> retried();
                case "dead" -> dead();
                case "popped" -> popped();
                case "ordered" -> ordered();
                case "light" -> light();
                case "grown" -> grown();
                case "shrunk" -> shrunk();
                case "deleted" -> deleted();
                case "recreated" -> recreated();
                case "twenty" -> send(topic("twenty", 20), 20, 60);
                case "odd" -> odd();
                default -> throw new IllegalArgumentException("no kind of message: " + kind);
            }
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.start();
        }
        for (Callable<Boolean> done : awaited) {
            await(done);
        }
        awaitQuiet();
    }

    private void single() throws Exception {
        topic("single", QUEUES);
        for (int i = 0; i < 60; i++) {
            Message message = message("single", i);
            if (i % 3 == 0) {
                message.setTags(null);
            }
            if (i % 4 == 0) {
                message.setKeys(List.of("one-" + i, "two-" + i % 7, "grün-" + i));
            }
            message.setFlag(i - 30);
            message.putUserProperty("größe", "日本語 " + i);
            sent(i % 10 == 9 ? producer.send(message, new MessageQueue("single", "harness", 1)) : producer.send(message));
        }
        Message empty = new Message("single", new byte[] {0});
        sent(producer.send(empty));
    }

    private void batch() throws Exception {
        topic("batch", QUEUES);
        for (int size = 1; size < 12; size++) {
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                messages.add(message("batch", size * 100 + i));
            }
            sent(producer.send(messages));
        }
    }

    private void compressed() throws Exception {
        topic("compressed", QUEUES);
        for (String type : Line.COMPRESSIONS) {
            System.setProperty("rocketmq.message.compressType", type);  // read when a producer is created
            DefaultMQProducer compressing = new DefaultMQProducer("compressing-" + type);
            compressing.setCompressMsgBodyOverHowmuch(100);
            start(compressing);
            for (int i = 0; i < 20; i++) {
                Message message = message("compressed", i);
                message.setKeys(type + "-" + i);
                message.setBody((type + " over and over ").repeat(1 + i * 10).getBytes(StandardCharsets.UTF_8));
                sent(compressing.send(message));
            }
            compressing.shutdown();
        }
        System.clearProperty("rocketmq.message.compressType");
    }

    /** Half are delivered, the others wait for longer than the test runs: the test sets messageDelayLevel. */
    private void delayed() throws Exception {
        topic("delayed", QUEUES);
        for (int i = 0; i < 40; i++) {
            Message message = message("delayed", i);
            message.setDelayTimeLevel(i % 2 == 0 ? 1 + i % 4 : 18);
            sent(producer.send(message));
        }
        awaitMessages("delayed", QUEUES, 20);
    }

    private void timed() throws Exception {
        topic("timed", QUEUES);
        for (int i = 0; i < 20; i++) {
            Message message = message("timed", i);
            Line.deliverAt(message, System.currentTimeMillis() + (i % 2 == 0 ? 2_000 : 3_600_000));
            sent(producer.send(message));
        }
        awaitMessages("timed", QUEUES, 10);
    }

    /** A third each is committed, rolled back, or left open. */
    private void transactional() throws Exception {
        topic("transactional", QUEUES);
        TransactionMQProducer transactions = new TransactionMQProducer("transacting");
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        start(transactions);
        for (int i = 0; i < 30; i++) {
            LocalTransactionState[] states = LocalTransactionState.values();
            sent(transactions.sendMessageInTransaction(message("transactional", i), states[i % states.length]));
        }
        awaitMessages("transactional", QUEUES, 10);
    }

    private void retried() throws Exception {
        ConcurrentLinkedQueue<String> again = new ConcurrentLinkedQueue<>();
        send(topic("retried", QUEUES), QUEUES, 20);
        consume("retrying", "retried", message -> {
            if (message.getReconsumeTimes() == 0) {
                return false;
            }
            again.add(message.getMsgId());
            return true;
        });
        awaited.add(() -> again.size() >= 20);
    }

    private void dead() throws Exception {
        send(topic("dead", QUEUES), QUEUES, 10);
        consume("dying", "dead", message -> false).setMaxReconsumeTimes(1);
        awaitMessages("%DLQ%dying", 1, 10);
    }

    /** Half are acknowledged; half fail at first and return through a retry topic. */
    private void popped() throws Exception {
        ConcurrentLinkedQueue<String> again = new ConcurrentLinkedQueue<>();
        send(topic("popped", QUEUES), QUEUES, 20);
        Line.popFrom(admin, address, "popped", "popping");
        DefaultMQPushConsumer consumer = consume("popping", "popped", message -> {
            if (message.getReconsumeTimes() > 0) {
                again.add(message.getMsgId());
            }
            return message.getReconsumeTimes() > 0 || Integer.parseInt(message.getProperty("number")) % 2 == 0;
        });
        Line.consumeByPop(consumer);
        awaited.add(() -> again.size() >= 10);
    }

    private void ordered() throws Exception {
        topic("ordered", QUEUES);
        for (int i = 0; i < 40; i++) {
            Message message = message("ordered", i);
            MessageAccessor.putProperty(message, "__SHARDINGKEY", "customer-" + i % 7);
            sent(producer.send(message, (queues, one, customer) -> queues.get((Integer) customer % queues.size()), i % 7));
        }
    }

    private void light() throws Exception {
        topic("light", QUEUES);
        for (int i = 0; i < 40; i++) {
            Message message = message("light", i);
            if (i % 4 > 0) {
                String targets = i % 4 == 1 ? "%LMQ%one" : i % 4 == 2 ? "%LMQ%two" : "%LMQ%one,%LMQ%two";
                MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", targets);
            }
            sent(producer.send(message));
        }
    }

    private void grown() throws Exception {
        send(topic("grown", 2), 2, 20);
        send(topic("grown", 5), 5, 25);
    }

    private void shrunk() throws Exception {
        send(topic("shrunk", 6), 6, 30);
        send(topic("shrunk", 2), 2, 20);
    }

    private void deleted() throws Exception {
        sendDispatched(topic("deleted", QUEUES), QUEUES, 20);
        delete("deleted", QUEUES);
    }

    /** With fewer messages than before. */
    private void recreated() throws Exception {
        sendDispatched(topic("recreated", QUEUES), QUEUES, 40);
        delete("recreated", QUEUES);
        send(topic("recreated", QUEUES), QUEUES, 10);
    }

    private void odd() throws Exception {
        for (String name : ODD_NAMES) {
            send(topic(name, 2), 2, 10);
        }
    }

    // --- steps -----------------------------------------------------------------------------------------

    private void start(DefaultMQProducer one) throws Exception {
        one.setNamesrvAddr(namesrv);
        one.setSendMsgTimeout(30_000);
        one.start();
    }

    private String topic(String name, int queues) throws Exception {
        TopicConfig config = new TopicConfig(name);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        admin.createAndUpdateTopicConfig(address, config);
        return name;
    }

    private void delete(String topic, int queues) throws Exception {
        admin.deleteTopicInBroker(Set.of(address), topic);
        await(() -> messagesIn(topic, queues) == 0);
    }

    private void send(String topic, int queues, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            sent(producer.send(message(topic, i), new MessageQueue(topic, "harness", i % queues)));
        }
    }

    /** Wait for dispatch: messages that the broker dispatches after a deletion would recreate the queues. */
    private void sendDispatched(String topic, int queues, int count) throws Exception {
        long all = messagesIn(topic, queues) + count;
        send(topic, queues, count);
        await(() -> messagesIn(topic, queues) == all);
    }

    private static Message message(String topic, int number) {
        byte[] body = (topic + " " + number).getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, "tag-" + number % 3, "key-" + number % 10 + " own-" + number, body);
        message.putUserProperty("number", "" + number);
        return message;
    }

    private static void sent(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    /** Whether a message was consumed. */
    private interface Consumed {
        boolean test(MessageExt message);
    }

    private DefaultMQPushConsumer consume(String group, String topic, Consumed consumed) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setPollNameServerInterval(1_000);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            messages.stream().allMatch(consumed::test)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumers.add(consumer);
        return consumer;
    }

    private void awaitMessages(String topic, int queues, long count) {
        awaited.add(() -> messagesIn(topic, queues) >= count);
    }

    private long messagesIn(String topic, int queues) throws Exception {
        long count = 0;
        for (int queue = 0; queue < queues; queue++) {
            count += broker.getMessageStore().getMaxOffsetInQueue(topic, queue);
        }
        return count;
    }

    /** Wait until nothing was appended for three seconds; later messages are hours away. */
    private void awaitQuiet() throws Exception {
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        long[] seen = {store.getMaxPhyOffset(), System.nanoTime()};
        await(() -> {
            if (store.getMaxPhyOffset() != seen[0]) {
                seen[0] = store.getMaxPhyOffset();
                seen[1] = System.nanoTime();
            }
            return System.nanoTime() - seen[1] > 3_000_000_000L;
        });
    }

    private static void await(Callable<Boolean> done) throws Exception {
        long deadline = System.nanoTime() + 120_000_000_000L;
        while (!done.call()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("waited in vain for two minutes");
            }
            Thread.sleep(20);
        }
    }
}
