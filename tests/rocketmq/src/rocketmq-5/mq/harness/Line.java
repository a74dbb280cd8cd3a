package mq.harness;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.stream.Stream;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Differences between RocketMQ release lines: 5.x. */
final class Line {
    private static final int COMPRESSION_LEVEL = 5;

    static final List<String> COMPRESSIONS = List.of("ZLIB", "LZ4", "ZSTD");

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

    /** A round of the clean-up that a broker does every ten seconds. */
    static void cleanUp(DefaultMessageStore store) throws ReflectiveOperationException {
        call(store, DefaultMessageStore.class, "cleanFilesPeriodically");
        Object queues = store.getQueueStore();
        boolean cleansItself = Stream.of(queues.getClass().getDeclaredMethods())
            .anyMatch(method -> method.getName().equals("cleanQueueFilesPeriodically"));
        Object cleaned = cleansItself ? queues : store;
        call(cleaned, cleansItself ? queues.getClass() : DefaultMessageStore.class, "cleanQueueFilesPeriodically");
    }

    private static void call(Object on, Class<?> where, String step) throws ReflectiveOperationException {
        Method method = where.getDeclaredMethod(step);
        method.setAccessible(true);
        method.invoke(on);
    }

    static ConfigManager scheduled(BrokerController broker) {
        return broker.getScheduleMessageService();
    }

    static byte[] compress(MessageExt message, byte[] body, String name) throws IOException {
        CompressionType type = CompressionType.of(name);
        message.setSysFlag(message.getSysFlag() | MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
        return CompressorFactory.getCompressor(type).compress(body, COMPRESSION_LEVEL);
    }

    static void bornHostIsV6(MessageExt message) {
        message.setBornHostV6Flag();
    }

    static void storeHostIsV6(MessageExt message) {
        message.setStoreHostAddressV6Flag();
    }

    static Set<String> systemTopics(BrokerController broker) {
        return TopicValidator.getSystemTopicSet();
    }

    /** Let its shutdown wait for the messages that are being consumed. */
    static void awaitTermination(DefaultMQPushConsumer consumer) {
        consumer.setAwaitTerminationMillisWhenShutdown(60_000);
    }

    /** Let the store refuse or accept messages. */
    static void fence(DefaultMessageStore store, boolean isFenced) {
        store.getRunningFlags().makeFenced(isFenced);
    }

    static void deliverAt(Message message, long time) {
        message.setDeliverTimeMs(time);
    }

    static void popFrom(DefaultMQAdminExt admin, String address, String topic, String group) throws Exception {
        admin.setMessageRequestMode(address, topic, group, MessageRequestMode.POP, 8, 5_000);
    }

    static void consumeByPop(DefaultMQPushConsumer consumer) {
        consumer.setClientRebalance(false);
    }
}
