package mq.harness;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What differs between RocketMQ lines: this is 5.x. */
final class Line {
    private Line() { }

    static DefaultMessageStore store(MessageStoreConfig config, List<String> batchTopics) throws IOException {
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String topic : batchTopics) {
            TopicConfig topicConfig = new TopicConfig(topic);
            topicConfig.setAttributes(Map.of("queue.type", "BatchCQ"));
            topics.put(topic, topicConfig);
        }
        return new DefaultMessageStore(config, new BrokerStatsManager("harness", true),
            (topic, queue, offset, tags, time, bits, properties) -> { }, new BrokerConfig(), topics);
    }

    static MessageExt message() {
        return new MessageExtBrokerInner();
    }

    static PutMessageResult put(DefaultMessageStore store, MessageExt message) {
        MessageExtBrokerInner inner = (MessageExtBrokerInner) message;
        inner.setPropertiesString(MessageDecoder.messageProperties2String(inner.getProperties()));
        return store.putMessage(inner);
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queue, long time, String boundary) {
        return store.getOffsetInQueueByTime(topic, queue, time, BoundaryType.getType(boundary));
    }

    /** One round of what the broker does every ten seconds. */
    static void cleanUp(DefaultMessageStore store) throws ReflectiveOperationException {
        for (String step : List.of("cleanFilesPeriodically", "cleanQueueFilesPeriodically")) {
            Method method = DefaultMessageStore.class.getDeclaredMethod(step);
            method.setAccessible(true);
            method.invoke(store);
        }
    }

    static ConfigManager scheduled(BrokerController broker) {
        return broker.getScheduleMessageService();
    }
}
