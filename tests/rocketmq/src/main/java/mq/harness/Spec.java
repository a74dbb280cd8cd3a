package mq.harness;

import java.util.List;
import java.util.Map;

/** What the tests ask for, as JSON; fields that are missing keep the values below. */
final class Spec {
    /** Keys of RocketMQ's MessageStoreConfig. */
    Map<String, String> config = Map.of();
    /** Topics whose queues are batch queues (attribute queue.type=BatchCQ). */
    List<String> batchTopics = List.of();

    List<Put> puts = List.of();
    /** "clean" shuts the store down, "halt" ends the process in the middle of everything. */
    String exit = "clean";

    List<Query> queries = List.of();
    /** Leave the directory as a clean shutdown does, instead of halting after the last line. */
    boolean shutdown = false;

    Live live = new Live();

    /** One message, or one batch of messages under the first one's hosts and times. */
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

    /** A broker and a client that sends to it. */
    static final class Live {
        int brokerPort = 20911;
        int namesrvPort = 29876;
        String topic = "Live";
        int queues = 4;
        int messages = 0;
        double perSecond = 100;
        int bodyBytes = 100;
    }
}
