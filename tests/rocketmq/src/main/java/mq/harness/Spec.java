package mq.harness;

import java.util.List;
import java.util.Map;

/** The tests' requests as JSON; missing fields keep the values below. */
final class Spec {
    /** Keys of RocketMQ's MessageStoreConfig. */
    Map<String, String> config = Map.of();
    /** Topics whose queues are batch queues (attribute queue.type=BatchCQ). */
    List<String> batchTopics = List.of();

    List<Put> puts = List.of();
    /** "clean" shuts the store down, "halt" ends the process at once. */
    String exit = "clean";

    List<Query> queries = List.of();
    /** Leave the directory as a clean shutdown does, instead of halting after the last line. */
    boolean shutdown = false;

    Live live = new Live();

    List<String> expressions = List.of();
    List<Map<String, String>> propertySets = List.of();

    /** One message, or a batch with the hosts and times of its first message. */
    static final class Put {
        String topic;
        int queueId;
        /** Base64. */
        String body = "";
        Map<String, String> properties = Map.of();
        int flag;
        /** "ZLIB", "LZ4" or "ZSTD": the body is stored compressed. */
        String compression;
        /** 0 none, 4 prepared, 8 commit, 12 rollback. */
        int transaction;
        long preparedTransactionOffset;
        int reconsumeTimes;
        long bornTimestamp;
        String bornHost = "127.0.0.1";
        int bornPort = 1;
        String storeHost = "127.0.0.1";
        int storePort = 10911;
        List<Put> batch;
    }

    /** By key (topic, key), by id, or by time (topic, queueId, time). */
    static final class Query {
        String topic;
        String key;
        int max = 64;
        long begin;
        long end = Long.MAX_VALUE;
        String id;
        int queueId;
        Long time;
        String boundary = "LOWER";
    }

    /** A broker, and the messages of its clients. */
    static final class Live {
        int brokerPort = 20911;
        int namesrvPort = 29876;
        /** Created with this number of queues, unless the directory has it. */
        String topic = "Live";
        int queues = 4;
        int bodyBytes = 100;
        /** Keys of RocketMQ's BrokerConfig. */
        Map<String, String> brokerConfig = Map.of();
        /** Keys of AuthConfig; since RocketMQ 5.3. */
        Map<String, String> authConfig = Map.of();
    }

    /** A line of standard input to a live broker. */
    static final class Request {
        /** send (messages, perSecond), clean, tidy, consume (group, topic, messages), describe (group, topic), persist,
         *  produce (kinds), look (topics, to add light ones that are in no table), stop. */
        String verb;
        int messages;
        double perSecond = 100;
        List<String> kinds = List.of();
        List<String> topics = List.of();
        String group;
        String topic;
    }
}
