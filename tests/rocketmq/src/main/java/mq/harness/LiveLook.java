package mq.harness;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Prints the view of RocketMQ's client and admin tool of a live broker, in the format of StoreReader. */
final class LiveLook {
    private static final int MANY = 64;

    private final BrokerController broker;
    private final DefaultMQAdminExt admin;
    private final DefaultMQPullConsumer consumer;
    private final Set<List<String>> keys = new LinkedHashSet<>();
    private final Set<List<String>> ids = new LinkedHashSet<>();

    LiveLook(BrokerController broker, DefaultMQAdminExt admin, DefaultMQPullConsumer consumer) {
        this.broker = broker;
        this.admin = admin;
        this.consumer = consumer;
    }

    void look(List<String> lightTopics) throws Exception {
        Map<String, Integer> topics = new TreeMap<>();
        for (TopicConfig config : broker.getTopicConfigManager().getTopicConfigTable().values()) {
            if (config.getTopicName().startsWith("%DLQ%")) {  // unreadable until the admin tool allows it
                config.setPerm(6);
                admin.createAndUpdateTopicConfig(broker.getBrokerAddr(), config);
            }
            if ((config.getPerm() & 4) != 0) {
                topics.put(config.getTopicName(), config.getReadQueueNums());
            }
        }
        Main.print(StoreReader.line("topics", "topics", new TreeMap<>(topics)));
        lightTopics.forEach(topic -> topics.put(topic, 1));
        for (String topic : topics.keySet()) {
            for (int queue = 0; queue < topics.get(topic); queue++) {
                lookAt(new MessageQueue(topic, "harness", queue));
            }
        }
        for (List<String> key : keys) {
            Main.print(byKey(key.get(0), key.get(1)));
        }
        for (List<String> id : ids) {
            Main.print(byId(id.get(0), id.get(1)));
        }
        Main.print(StoreReader.line("done"));
    }

    private void lookAt(MessageQueue queue) throws Exception {
        long min = admin.minOffset(queue);
        long max = admin.maxOffset(queue);
        Main.print(StoreReader.line("queue", "topic", queue.getTopic(), "queueId", queue.getQueueId(),
            "min", min, "max", max));
        Set<Long> times = new LinkedHashSet<>();
        for (long offset = min; offset < max; ) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() != PullStatus.FOUND || result.getNextBeginOffset() <= offset) {
                Main.print(StoreReader.line("gap", "topic", queue.getTopic(), "queueId", queue.getQueueId(),
                    "offset", offset, "status", result.getPullStatus().name(), "next", result.getNextBeginOffset()));
                break;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                print(message);
                times.add(message.getStoreTimestamp());
            }
            offset = result.getNextBeginOffset();
        }
        for (long stored : List.copyOf(times)) {
            times.add(stored - 1);
            times.add(stored + 1);
        }
        for (long time : times) {
            Main.print(StoreReader.line("time", "topic", queue.getTopic(), "queueId", queue.getQueueId(), "time", time,
                "offset", admin.searchOffset(queue, time)));
        }
    }

    private void print(MessageExt message) {
        String own = message.getTopic();
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove("MIN_OFFSET");  // a client adds these two
        properties.remove("MAX_OFFSET");
        message.getProperties().keySet().retainAll(properties.keySet());
        Main.print(StoreReader.message(message, message.getStoreSize(), null, message.getSysFlag()));
        if (message.getKeys() != null) {
            List.of(message.getKeys().split(" ")).forEach(key -> keys.add(List.of(own, key)));
        }
        ids.add(List.of(own, message.getMsgId()));
        ids.add(List.of(own, MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset())));
    }

    private Map<String, Object> byKey(String topic, String key) throws InterruptedException {
        List<Long> offsets = new ArrayList<>();
        try {
            for (MessageExt message : admin.queryMessage(topic, key, MANY, 0, Long.MAX_VALUE).getMessageList()) {
                offsets.add(message.getCommitLogOffset());
            }
        } catch (MQClientException e) {
            return StoreReader.line("unanswered", "topic", topic, "key", key, "why", e.getErrorMessage());
        }
        return StoreReader.line("query", "topic", topic, "key", key, "max", MANY, "physicalOffsets", offsets);
    }

    private Map<String, Object> byId(String topic, String id) throws Exception {
        try {
            MessageExt message = admin.viewMessage(topic, id);
            return StoreReader.line("id", "id", id, "asked", topic, "topic", message.getTopic(), "queueId",
                message.getQueueId(), "queueOffset", message.getQueueOffset(),
                "physicalOffset", message.getCommitLogOffset());
        } catch (MQClientException e) {
            return StoreReader.line("unanswered", "topic", topic, "id", id, "why", e.getErrorMessage());
        }
    }
}
