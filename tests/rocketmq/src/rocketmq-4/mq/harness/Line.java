package mq.harness;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What differs between RocketMQ lines: this is 4.9, which knows no batch queues and no boundary of a time. */
final class Line {
    private Line() { }

    static DefaultMessageStore store(MessageStoreConfig config, List<String> batchTopics) throws IOException {
        if (!batchTopics.isEmpty()) {
            throw new IllegalArgumentException("RocketMQ 4.9 has no batch queues: " + batchTopics);
        }
        return new DefaultMessageStore(config, new BrokerStatsManager("harness", true),
            (topic, queue, offset, tags, time, bits, properties) -> { }, new BrokerConfig());
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
        return store.getOffsetInQueueByTime(topic, queue, time);
    }

    /** One round of what the broker does every ten seconds. */
    static void cleanUp(DefaultMessageStore store) throws ReflectiveOperationException {
        Method method = DefaultMessageStore.class.getDeclaredMethod("cleanFilesPeriodically");
        method.setAccessible(true);
        method.invoke(store);
    }

    static ConfigManager scheduled(BrokerController broker) {
        return ((DefaultMessageStore) broker.getMessageStore()).getScheduleMessageService();
    }
}
