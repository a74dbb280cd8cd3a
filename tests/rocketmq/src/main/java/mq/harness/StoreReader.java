package mq.harness;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.QueryMessageResult;

/** Prints the results of RocketMQ's own reader: a line for the log, for each queue and for each message. */
final class StoreReader {
    private static final int SYS_FLAG_POSITION = 36;
    private static final int ROUND = 1000;

    private StoreReader() { }

    static void run(Path directory, Spec spec) throws Exception {
        Map<String, String> config = new LinkedHashMap<>(spec.config);
        config.put("maxTransferCountOnMessageInMemory", "" + ROUND);
        config.put("maxTransferCountOnMessageInDisk", "" + ROUND);
        config.put("maxTransferBytesOnMessageInMemory", "" + (64 << 20));
        config.put("maxTransferBytesOnMessageInDisk", "" + (64 << 20));
        spec.config = config;
        DefaultMessageStore store = Stores.open(directory, spec);
        Main.print(line("log", "min", store.getMinPhyOffset(), "max", store.getMaxPhyOffset()));
        for (Path topic : Stores.children(directory.resolve("consumequeue"))) {
            for (Path queue : Stores.children(topic)) {
                readQueue(store, topic.getFileName().toString(), Integer.parseInt(queue.getFileName().toString()));
            }
        }
        spec.queries.forEach(query -> Main.print(answer(store, query)));
        if (spec.shutdown) {
            store.shutdown();
        }
    }

    private static void readQueue(DefaultMessageStore store, String topic, int queue) throws Exception {
        long min = store.getMinOffsetInQueue(topic, queue);
        long max = store.getMaxOffsetInQueue(topic, queue);
        Main.print(line("queue", "topic", topic, "queueId", queue, "min", min, "max", max));
        long offset = min;
        while (offset < max) {
            TagsCodes tagsCodes = new TagsCodes();
            GetMessageResult result = store.getMessage("harness", topic, queue, offset, ROUND, tagsCodes);
            if (result.getStatus() != GetMessageStatus.FOUND || result.getNextBeginOffset() <= offset) {
                Main.print(line("gap", "topic", topic, "queueId", queue, "offset", offset,
                    "status", result.getStatus().name(), "next", result.getNextBeginOffset()));
                if (result.getNextBeginOffset() <= offset) {
                    return;
                }
            }
            List<ByteBuffer> records = result.getMessageBufferList();
            for (int i = 0; i < records.size(); i++) {
                if (records.get(i).remaining() <= SYS_FLAG_POSITION) {
                    Main.print(line("gap", "topic", topic, "queueId", queue, "offset", offset, "status",
                        "an entry of " + records.get(i).remaining() + " bytes", "next", result.getNextBeginOffset()));
                    continue;
                }
                if (MessageDecoder.decode(records.get(i).duplicate(), true, true, true) == null) {
                    Main.print(line("gap", "topic", topic, "queueId", queue, "offset", offset, "status",
                        "an entry of no record", "next", result.getNextBeginOffset()));
                    continue;
                }
                Main.print(message(records.get(i), tagsCodes.seen.get(i)));
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    private static Map<String, Object> message(ByteBuffer record, Long tagsCode) {
        int storedSysFlag = record.getInt(record.position() + SYS_FLAG_POSITION);
        int size = record.remaining();
        MessageExt message = MessageDecoder.decode(record, true, true, true);
        if (message == null) {
            throw new IllegalStateException("RocketMQ does not decode a record of " + size + " bytes");
        }
        return message(message, size, tagsCode, storedSysFlag);
    }

    static Map<String, Object> message(MessageExt message, int size, Long tagsCode, int storedSysFlag) {
        Map<String, String> properties = message.getProperties() == null ? Map.of() : message.getProperties();
        String unique = properties.get(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Map<String, Object> line = line("message", "topic", message.getTopic(), "queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("size", size);
        line.put("tagsCode", tagsCode);
        line.put("msgId", message.getMsgId());
        line.put("offsetMsgId", MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset()));
        line.put("uniqueKey", unique);
        line.put("body", Base64.getEncoder().encodeToString(body));
        line.put("bodyCRC", message.getBodyCRC());
        line.put("properties", properties);
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("storedSysFlag", storedSysFlag);
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bornHost", host(message.getBornHost()));
        line.put("storeHost", host(message.getStoreHost()));
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        return line;
    }

    private static Map<String, Object> answer(DefaultMessageStore store, Spec.Query query) {
        if (query.id != null) {
            try {
                MessageId id = MessageDecoder.decodeMessageId(query.id);
                MessageExt message = store.lookMessageByOffset(id.getOffset());
                return line("id", "id", query.id, "topic", message.getTopic(), "queueId", message.getQueueId(),
                    "queueOffset", message.getQueueOffset());
            } catch (java.net.UnknownHostException e) {
                throw new IllegalArgumentException(query.id, e);
            }
        }
        if (query.time != null) {
            return line("time", "topic", query.topic, "queueId", query.queueId, "time", query.time, "boundary",
                query.boundary, "offset",
                Line.offsetByTime(store, query.topic, query.queueId, query.time, query.boundary));
        }
        QueryMessageResult result = store.queryMessage(query.topic, query.key, query.max, query.begin, query.end);
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer record : result.getMessageBufferList()) {
            offsets.add(MessageDecoder.decode(record, false, false).getCommitLogOffset());
        }
        result.release();
        return line("query", "topic", query.topic, "key", query.key, "max", query.max, "begin", query.begin,
            "end", query.end, "physicalOffsets", offsets);
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + "|" + host.getPort();
    }

    static Map<String, Object> line(String kind, Object... fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        for (int i = 0; i < fields.length; i += 2) {
            line.put((String) fields[i], fields[i + 1]);
        }
        return line;
    }

    /** Accepts everything and keeps the tags codes, which RocketMQ shows only to a filter. */
    private static final class TagsCodes implements MessageFilter {
        final List<Long> seen = new ArrayList<>();
        private Long entry;

        @Override
        public boolean isMatchedByConsumeQueue(Long tagsCode, ConsumeQueueExt.CqExtUnit unit) {
            entry = unit == null ? tagsCode : Long.valueOf(unit.getTagsCode());
            return true;
        }

        @Override
        public boolean isMatchedByCommitLog(ByteBuffer record, Map<String, String> properties) {
            seen.add(entry);
            return true;
        }
    }
}
