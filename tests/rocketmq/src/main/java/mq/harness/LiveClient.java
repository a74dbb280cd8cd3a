package mq.harness;

import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Carries out requests at a live broker: with the real client, the admin tool, or the broker's own functions. */
final class LiveClient {
    private final BrokerController broker;
    private final Spec.Live live;
    private final String namesrv;
    private DefaultMQProducer producer;
    private DefaultMQAdminExt admin;
    private Thread sender;
    private int number;

    LiveClient(BrokerController broker, Spec.Live live, String namesrv) {
        this.broker = broker;
        this.live = live;
        this.namesrv = namesrv;
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");  // instead of 20 s
    }

    void answer(Spec.Request request) throws Exception {
        switch (request.verb) {
            case "send" -> send(request);
            case "clean" -> clean();
            case "tidy" -> tidy();
            case "consume" -> consume(request);
            case "describe" -> describe(request);
            case "persist" -> persist();
            case "produce" -> produce(request);
            case "look" -> look(request);
            case "stop" -> stop();
            default -> throw new IllegalArgumentException("no verb of Request: " + request.verb);
        }
    }

    /** In the background, so that other requests are answered at the same time; sends follow each other. */
    private void send(Spec.Request request) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("harness");
            producer.setNamesrvAddr(namesrv);
            producer.setSendMsgTimeout(30_000);
            producer.start();
        } else {
            sender.join();
        }
        sender = new Thread(() -> sendAll(request), "sender");
        sender.setDaemon(true);
        sender.start();
    }

    private void sendAll(Spec.Request request) {
        long nanosEach = (long) (1e9 / request.perSecond);
        long due = System.nanoTime();
        try {
            for (int i = 0; i < request.messages; i++) {
                SendResult result = producer.send(message());
                Main.print(StoreReader.line("sent", "number", number, "queueId", result.getMessageQueue().getQueueId(),
                    "queueOffset", result.getQueueOffset(), "msgId", result.getMsgId(),
                    "offsetMsgId", result.getOffsetMsgId(), "status", result.getSendStatus().name()));
                Main.flush();
                number++;
                due += nanosEach;
                LockSupport.parkNanos(due - System.nanoTime());
            }
            Main.print(StoreReader.line("done"));
        } catch (Exception e) {
            Main.print(StoreReader.line("failed", "why", e.toString()));
        }
        Main.flush();
    }

    private Message message() {
        byte[] body = new byte[Math.max(4, live.bodyBytes)];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) (number >>> (i % 4 * 8));
        }
        Message message = new Message(live.topic, "tag-" + number % 3, "key-" + number, body);
        message.putUserProperty("number", "" + number);
        return message;
    }

    /** The broker's own clean-up, now instead of a minute after the start and every ten seconds. */
    private void clean() throws Exception {
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        store.executeDeleteFilesManually();
        Line.cleanUp(store);
        Main.print(StoreReader.line("cleaned", "min", store.getMinPhyOffset()));
    }

    /** Let the admin tool delete queues that have no message or whose topic is in no table. */
    private void tidy() throws Exception {
        admin().cleanUnusedTopicByAddr(broker.getBrokerAddr());
        admin().cleanExpiredConsumerQueueByAddr(broker.getBrokerAddr());
        Main.print(StoreReader.line("tidied"));
    }

    /** Consume the requested number of messages as a group; the broker keeps the group's offsets. */
    private void consume(Spec.Request request) throws Exception {
        CountDownLatch left = new CountDownLatch(request.messages);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Main.print(StoreReader.line("consumed", "queueId", message.getQueueId(), "queueOffset",
                    message.getQueueOffset(), "body", Base64.getEncoder().encodeToString(message.getBody())));
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Line.awaitTermination(consumer);  // otherwise the last message counts as not consumed
        consumer.start();
        left.await();
        consumer.shutdown();
        Main.print(StoreReader.line("done"));
    }

    /** Print the broker's settings of a topic and a group, and its system topics. */
    private void describe(Spec.Request request) {
        var topic = broker.getTopicConfigManager().selectTopicConfig(request.topic);
        Map<Integer, Long> offsets = new LinkedHashMap<>();
        for (int queue = 0; queue < topic.getReadQueueNums(); queue++) {
            offsets.put(queue, broker.getConsumerOffsetManager().queryOffset(request.group, request.topic, queue));
        }
        Main.print(StoreReader.line("described", "topic", topic, "offsets", offsets,
            "group", broker.getSubscriptionGroupManager().getSubscriptionGroupTable().get(request.group),
            "systemTopics", Line.systemTopics(broker)));
    }

    private void produce(Spec.Request request) throws Exception {
        new LiveKinds(broker, admin(), namesrv, broker.getBrokerAddr()).produce(request.kinds);
        Main.print(StoreReader.line("done"));
    }

    /** The broker accepts no message from here on, so the view equals the directory that it leaves. */
    private void look(Spec.Request request) throws Exception {
        Line.fence((DefaultMessageStore) broker.getMessageStore(), true);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("looking");
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        new LiveLook(broker, admin(), consumer).look(request.topics);
    }

    /** A clean shutdown, which takes seconds. */
    private void stop() {
        Line.fence((DefaultMessageStore) broker.getMessageStore(), false);  // otherwise `abort` stays
        broker.shutdown();
        Main.print(StoreReader.line("stopped"));
    }

    private DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt("administering");
            admin.setNamesrvAddr(namesrv);
            admin.start();
        }
        return admin;
    }

    /** A broker does this every five or ten seconds. */
    private void persist() {
        broker.getConsumerOffsetManager().persist();
        Line.scheduled(broker).persist();
        Main.print(StoreReader.line("persisted"));
    }
}
