package mq.harness;

import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** RocketMQ's own clients with any name server. Requests are lines of standard input; its end halts everything. */
public final class RemoteClient {
    private final String namesrv;
    private final RPCHook hook;
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private DefaultMQProducer producer;
    private TransactionMQProducer transactions;
    private DefaultMQAdminExt admin;
    private int number;

    private RemoteClient(String namesrv, String key, String secret) {
        this.namesrv = namesrv;
        this.hook = key == null ? null : new AclClientRPCHook(new SessionCredentials(key, secret));
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");  // instead of 20 s
        System.setProperty("rocketmq.client.rebalance.lockInterval", "500");
    }

    /** Usage: 127.0.0.1:9876 [accessKey secretKey] */
    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        RemoteClient client = new RemoteClient(args[0], args.length > 1 ? args[1] : null, args.length > 1 ? args[2] : null);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            try {
                client.answer(Main.GSON.fromJson(line, JsonObject.class));
            } catch (Exception e) {
                e.printStackTrace();
                say("failed", "why", e.getCause() == null ? e.toString() : e + ": " + e.getCause(), "code", e instanceof MQBrokerException broker ? broker.getResponseCode() : -1);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(String kind, Object... fields) {
        Main.print(StoreReader.line(kind, fields));
        Main.flush();
    }

    private void answer(JsonObject asked) throws Exception {
        switch (asked.get("verb").getAsString()) {
            case "send" -> send(asked);
            case "burst" -> burst(asked);
            case "subscribe" -> subscribe(asked);
            case "poll" -> poll(asked);
            case "leave" -> {
                consumers.remove(asked.get("id").getAsString()).shutdown();
                say("left");
            }
            case "offsets" -> offsets(asked);
            case "find" -> find(asked);
            case "createTopic" -> createTopic(asked);
            case "topics" -> say("topics", "names", new TreeSet<>(admin().fetchAllTopicList().getTopicList()));
            case "stats" -> stats(asked);
            case "progress" -> progress(asked);
            case "transaction" -> transaction(asked);
            case "mqadmin" -> mqadmin(asked);
            case "cluster" -> say("cluster", "brokers", admin().examineBrokerClusterInfo().getBrokerAddrTable().keySet());
            default -> throw new IllegalArgumentException("no verb: " + asked);
        }
    }

    private static int number(JsonObject asked, String name, int otherwise) {
        return asked.has(name) ? asked.get(name).getAsInt() : otherwise;
    }

    private static String text(JsonObject asked, String name, String otherwise) {
        return asked.has(name) ? asked.get(name).getAsString() : otherwise;
    }

    private DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("remote-producers", hook);
            producer.setNamesrvAddr(namesrv);
            producer.setSendMsgTimeout(30_000);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
        }
        return producer;
    }

    private DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(hook);
            admin.setNamesrvAddr(namesrv);
            admin.start();
        }
        return admin;
    }

    /** how: sync, async, oneway, batch; messages, bodyBytes, tags (taken in turn), properties, queue, level. */
    private void send(JsonObject asked) throws Exception {
        int count = number(asked, "messages", 1);
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            messages.add(message(asked));
        }
        CountDownLatch left = new CountDownLatch(count);
        switch (text(asked, "how", "sync")) {
            case "sync" -> {
                for (Message message : messages) {
                    sent(asked.has("queue") ? producer().send(message, queue(asked)) : producer().send(message));
                }
            }
            case "async" -> {
                for (Message message : messages) {
                    producer().send(message, new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            sent(result);
                            left.countDown();
                        }

                        @Override
                        public void onException(Throwable e) {
                            say("failed", "why", e.toString());
                            left.countDown();
                        }
                    });
                }
                left.await();
            }
            case "oneway" -> {
                for (Message message : messages) {
                    producer().sendOneway(message);
                }
            }
            case "batch" -> sent(producer().send(messages));
            default -> throw new IllegalArgumentException("no way to send: " + asked);
        }
        say("done");
    }

    private MessageQueue queue(JsonObject asked) throws Exception {
        String topic = asked.get("topic").getAsString();
        return producer().fetchPublishMessageQueues(topic).get(number(asked, "queue", 0));
    }

    private Message message(JsonObject asked) {
        byte[] body = ("" + number).getBytes(StandardCharsets.UTF_8);
        byte[] padded = java.util.Arrays.copyOf(body, Math.max(body.length, number(asked, "bodyBytes", 0)));
        Message message = new Message(asked.get("topic").getAsString(), padded);
        if (asked.has("tags")) {
            message.setTags(asked.getAsJsonArray("tags").get(number % asked.getAsJsonArray("tags").size()).getAsString());
        }
        message.setKeys("key-" + number);
        message.putUserProperty("number", "" + number);
        if (asked.has("level")) {
            message.setDelayTimeLevel(number(asked, "level", 0));
        }
        if (asked.has("properties")) {  // including those that only clients may set
            asked.getAsJsonObject("properties").entrySet()
                .forEach(entry -> MessageAccessor.putProperty(message, entry.getKey(), entry.getValue().getAsString()));
        }
        number++;
        return message;
    }

    private static void sent(SendResult result) {
        say("sent", "status", result.getSendStatus().name(), "msgId", result.getMsgId(), "offsetMsgId",
            result.getOffsetMsgId(), "queueId", result.getMessageQueue().getQueueId(), "queueOffset",
            result.getQueueOffset(), "broker", result.getMessageQueue().getBrokerName());
    }

    /** messages, as in send; outcome: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW; checked: the answer to a check. */
    private void transaction(JsonObject asked) throws Exception {
        if (transactions == null) {
            transactions = new TransactionMQProducer("remote-transactions", hook);
            transactions.setNamesrvAddr(namesrv);
            transactions.setSendMsgTimeout(30_000);
            transactions.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
                    return LocalTransactionState.valueOf((String) outcome);
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    say("checked", "topic", message.getTopic(), "queueId", message.getQueueId(), "keys", message.getKeys(),
                        "body", Base64.getEncoder().encodeToString(message.getBody()), "transactionId",
                        message.getTransactionId(), "properties", message.getProperties());
                    return LocalTransactionState.valueOf(message.getUserProperty("checked"));
                }
            });
            transactions.start();
        }
        for (int i = 0; i < number(asked, "messages", 1); i++) {
            Message message = message(asked);
            message.putUserProperty("checked", text(asked, "checked", "UNKNOW"));
            sent(transactions.sendMessageInTransaction(message, text(asked, "outcome", "COMMIT_MESSAGE")));
        }
        say("done");
    }

    /** Run a command line of mqadmin; answer with its output. */
    private void mqadmin(JsonObject asked) throws Exception {
        List<String> words = new ArrayList<>();
        asked.getAsJsonArray("words").forEach(word -> words.add(word.getAsString()));
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, namesrv);
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(written, true, StandardCharsets.UTF_8));
        try {
            SubCommand command = subCommand(words.remove(0));
            Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
            command.execute(new PosixParser().parse(options, words.toArray(new String[0])), options, hook);
        } finally {
            System.setOut(before);
        }
        say("written", "text", written.toString(StandardCharsets.UTF_8));
    }

    private static SubCommand subCommand(String name) throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {  // its name differs between release lines
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                List<?> commands = (List<?>) field.get(null);
                if (commands.isEmpty()) {
                    MQAdminStartup.initCommand();
                }
                for (Object command : commands) {
                    if (((SubCommand) command).commandName().equalsIgnoreCase(name)) {
                        return (SubCommand) command;
                    }
                }
            }
        }
        throw new IllegalArgumentException("no command: " + name);
    }

    /** Synchronous sends (or batches) from several threads; answers with the time they took. */
    private void burst(JsonObject asked) throws Exception {
        int threads = number(asked, "threads", 8);
        int each = number(asked, "each", 100);
        int batch = number(asked, "batch", 1);
        producer();
        AtomicInteger failed = new AtomicInteger();
        List<Thread> running = new ArrayList<>();
        long begin = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            running.add(new Thread(() -> {
                byte[] body = new byte[number(asked, "bodyBytes", 100)];
                for (int i = 0; i < each; i++) {
                    try {
                        List<Message> messages = new ArrayList<>();
                        for (int j = 0; j < batch; j++) {
                            messages.add(new Message(asked.get("topic").getAsString(), body));
                        }
                        if (batch == 1) {
                            producer.send(messages.get(0));
                        } else {
                            producer.send(messages);
                        }
                    } catch (Exception e) {
                        e.printStackTrace();
                        failed.incrementAndGet();
                    }
                }
            }));
        }
        running.forEach(Thread::start);
        for (Thread thread : running) {
            thread.join();
        }
        say("burst", "nanos", System.nanoTime() - begin, "failed", failed.get());
    }

    /** id, group, topic, expression or sql, orderly, latest; failures: how often each message fails at first; most:
     *  maximum number of retries. */
    private void subscribe(JsonObject asked) throws Exception {
        String id = text(asked, "id", "one");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(asked.get("group").getAsString(), hook,
            new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(id);
        consumer.setConsumeFromWhere(asked.has("latest") ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setMaxReconsumeTimes(number(asked, "most", -1));
        if (asked.has("broadcasting")) {  // the type's package differs between release lines
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        }
        if (asked.has("sql")) {
            consumer.subscribe(asked.get("topic").getAsString(), MessageSelector.bySql(asked.get("sql").getAsString()));
        } else {
            consumer.subscribe(asked.get("topic").getAsString(), text(asked, "expression", "*"));
        }
        int failures = number(asked, "failures", 0);
        CountDownLatch told = new CountDownLatch(1);  // messages may arrive before start() returns
        if (asked.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                await(told);
                return consumed(id, messages, failures) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                await(told);
                context.setDelayLevelWhenNextConsume(number(asked, "level", 1));
                return consumed(id, messages, failures) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        Line.awaitTermination(consumer);
        consumer.start();
        consumers.put(id, consumer);
        say("subscribed", "id", id);
        told.countDown();
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Pull messages with RocketMQ's pull consumer, which then commits and leaves. */
    private void poll(JsonObject asked) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(asked.get("group").getAsString(), hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("poll");
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(asked.get("topic").getAsString(), text(asked, "expression", "*"));
        consumer.start();
        for (int left = number(asked, "messages", 1); left > 0; ) {
            List<MessageExt> messages = consumer.poll(1000);
            consumed("poll", messages, 0);
            left -= messages.size();
        }
        consumer.commitSync();
        consumer.shutdown();
        say("done");
    }

    private static boolean consumed(String id, List<MessageExt> messages, int failures) {
        boolean isDone = true;
        for (MessageExt message : messages) {
            isDone &= message.getReconsumeTimes() >= failures;
            say("consumed", "id", id, "topic", message.getTopic(), "queueId", message.getQueueId(), "queueOffset",
                message.getQueueOffset(), "body", Base64.getEncoder().encodeToString(message.getBody()), "tags",
                message.getTags(), "keys", message.getKeys(), "msgId", message.getMsgId(), "reconsumeTimes",
                message.getReconsumeTimes(), "bornHost", message.getBornHostString(), "properties",
                message.getProperties(), "after", System.currentTimeMillis() - message.getBornTimestamp());
        }
        return isDone;
    }

    /** As mqadmin's updateTopic. */
    private void createTopic(JsonObject asked) throws Exception {
        TopicConfig topic = new TopicConfig(asked.get("topic").getAsString());
        topic.setReadQueueNums(number(asked, "queues", 4));
        topic.setWriteQueueNums(number(asked, "queues", 4));
        for (var broker : admin().examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            admin().createAndUpdateTopicConfig(broker.selectBrokerAddr(), topic);
        }
        say("done");
    }

    private void offsets(JsonObject asked) throws Exception {
        String topic = asked.get("topic").getAsString();
        for (MessageQueue queue : producer().fetchPublishMessageQueues(topic)) {
            say("queue", "queueId", queue.getQueueId(), "min", admin().minOffset(queue), "max", admin().maxOffset(queue),
                "at", admin().searchOffset(queue, asked.has("time") ? asked.get("time").getAsLong() : 0));
        }
        say("done");
    }

    /** By key, or by id: the client's or the broker's. */
    private void find(JsonObject asked) throws Exception {
        String topic = asked.get("topic").getAsString();
        Collection<MessageExt> found = asked.has("key")
            ? admin().queryMessage(topic, asked.get("key").getAsString(), 32, 0, System.currentTimeMillis() + 60_000).getMessageList()
            : List.of(admin().viewMessage(topic, asked.get("id").getAsString()));
        for (MessageExt message : found) {
            say("found", "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(), "keys", message.getKeys(),
                "msgId", message.getMsgId());
        }
        say("done");
    }

    private void stats(JsonObject asked) throws Exception {
        admin().examineTopicStats(asked.get("topic").getAsString()).getOffsetTable().forEach((queue, offset) ->
            say("queue", "queueId", queue.getQueueId(), "min", offset.getMinOffset(), "max", offset.getMaxOffset(),
                "time", offset.getLastUpdateTimestamp()));
        say("done");
    }

    private void progress(JsonObject asked) throws Exception {
        admin().examineConsumeStats(asked.get("group").getAsString()).getOffsetTable().forEach((queue, offset) ->
            say("queue", "topic", queue.getTopic(), "queueId", queue.getQueueId(), "broker", offset.getBrokerOffset(),
                "consumer", offset.getConsumerOffset()));
        Set<String> ids = new TreeSet<>();
        admin().examineConsumerConnectionInfo(asked.get("group").getAsString()).getConnectionSet()
            .forEach(connection -> ids.add(connection.getClientId()));
        say("done", "clients", ids);
    }
}
