package mq.harness;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Differences between RocketMQ release lines. 4.9 has no batch queues and no boundary of a time. */
final class Line {
    private static final int COMPRESSION_LEVEL = 5;

    static final List<String> COMPRESSIONS = List.of("ZLIB", "LZ4", "ZSTD");

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

    /** A round of the clean-up that a broker does every ten seconds. */
    static void cleanUp(DefaultMessageStore store) throws ReflectiveOperationException {
        Method method = DefaultMessageStore.class.getDeclaredMethod("cleanFilesPeriodically");
        method.setAccessible(true);
        method.invoke(store);
    }

    static ConfigManager scheduled(BrokerController broker) {
        return ((DefaultMessageStore) broker.getMessageStore()).getScheduleMessageService();
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
        if (isFenced) {
            store.getRunningFlags().getAndMakeNotWriteable();
        } else {
            store.getRunningFlags().getAndMakeWriteable();
        }
    }

    static void deliverAt(Message message, long time) {
        throw new IllegalArgumentException("RocketMQ 4.9 delays by levels only");
    }

    static void popFrom(DefaultMQAdminExt admin, String address, String topic, String group) {
        throw new IllegalArgumentException("RocketMQ 4.9 knows no pop");
    }

    static void consumeByPop(DefaultMQPushConsumer consumer) {
        throw new IllegalArgumentException("RocketMQ 4.9 knows no pop");
    }
}
