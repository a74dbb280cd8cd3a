package mq.harness;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Differences between RocketMQ release lines. 4.3 has only zlib and IPv4. */
final class Line {
    private static final int COMPRESSION_LEVEL = 5;

    static final List<String> COMPRESSIONS = List.of("ZLIB");

    private Line() { }

    static DefaultMessageStore store(MessageStoreConfig config, List<String> batchTopics) throws IOException {
        if (!batchTopics.isEmpty()) {
            throw new IllegalArgumentException("RocketMQ 4.3 has no batch queues: " + batchTopics);
        }
        return new DefaultMessageStore(config, new BrokerStatsManager("harness"),
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
        if (!name.equals("ZLIB")) {
            throw new IllegalArgumentException("RocketMQ 4.3 compresses with ZLIB only, not " + name);
        }
        message.setSysFlag(message.getSysFlag() | MessageSysFlag.COMPRESSED_FLAG);
        return UtilAll.compress(body, COMPRESSION_LEVEL);
    }

    static void bornHostIsV6(MessageExt message) {
        throw new IllegalArgumentException("RocketMQ 4.3 stores no IPv6 host: " + message.getBornHost());
    }

    static void storeHostIsV6(MessageExt message) {
        throw new IllegalArgumentException("RocketMQ 4.3 stores no IPv6 host: " + message.getStoreHost());
    }

    /** The topics that TopicConfigManager creates; there is no other list. */
    static Set<String> systemTopics(BrokerController broker) {
        return broker.getTopicConfigManager().getSystemTopic();
    }

    static void awaitTermination(DefaultMQPushConsumer consumer) {
        // Not available: messages that are being consumed during the shutdown are consumed again.
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
        throw new IllegalArgumentException("RocketMQ 4.3 delays by levels only");
    }

    static void popFrom(DefaultMQAdminExt admin, String address, String topic, String group) {
        throw new IllegalArgumentException("RocketMQ 4.3 knows no pop");
    }

    static void consumeByPop(DefaultMQPushConsumer consumer) {
        throw new IllegalArgumentException("RocketMQ 4.3 knows no pop");
    }
}
