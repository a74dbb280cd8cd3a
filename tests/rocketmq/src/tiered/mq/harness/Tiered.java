package mq.harness;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.tieredstore.MessageStoreConfig;
import org.apache.rocketmq.tieredstore.MessageStoreExecutor;
import org.apache.rocketmq.tieredstore.common.AppendResult;
import org.apache.rocketmq.tieredstore.file.FlatFileStore;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;
import org.apache.rocketmq.tieredstore.index.IndexItem;
import org.apache.rocketmq.tieredstore.index.IndexStoreService;
import org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore;
import org.apache.rocketmq.tieredstore.provider.PosixFileSegment;
import org.apache.rocketmq.tieredstore.util.MessageFormatUtil;
import org.apache.rocketmq.tieredstore.util.MessageStoreUtil;

/**
 * RocketMQ's tiered store on a directory:
 * `Tiered write|read|query ARCHIVE METADATA_ROOT CLUSTER BROKER LOG_BYTES QUEUE_BYTES SLOTS`.
 *
 * write: each line of standard input is a record, {"topic", "queueId", "queueOffset", "tagsCode", "record": base64}.
 * RocketMQ's dispatcher places and commits it; at the end the index is uploaded. read: prints a line for each queue and
 * message. query: each line of standard input is a query, {"topic", "key"}; prints a line for each message that the
 * index names, as RocketMQ's fetcher returns it.
 */
public final class Tiered {
    private record Put(String topic, int queueId, long queueOffset, long tagsCode, String record) { }

    private record Question(String topic, String key) { }

    private Tiered() { }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        int status = 0;
        try {
            MessageStoreConfig config = config(args);
            FlatFileStore store = new FlatFileStore(config, new DefaultMetadataStore(config), new MessageStoreExecutor());
            if (!store.load()) {
                throw new IllegalStateException("not loaded");
            }
            switch (args[0]) {
                case "write" -> write(store, config);
                case "read" -> read(store);
                case "query" -> query(store, config);
                default -> throw new IllegalArgumentException("write, read or query, not " + args[0]);
            }
        } catch (Exception | Error e) {
            e.printStackTrace();
            status = 1;
        }
        Main.flush();
        Runtime.getRuntime().halt(status);
    }

    private static MessageStoreConfig config(String[] args) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setTieredStoreFilePath(args[1]);
        config.setStorePathRootDir(args[2]);
        config.setBrokerClusterName(args[3]);
        config.setBrokerName(args[4]);
        config.setTieredStoreCommitLogMaxSize(Long.parseLong(args[5]));
        config.setTieredStoreConsumeQueueMaxSize(Long.parseLong(args[6]));
        config.setTieredStoreIndexFileMaxHashSlotNum(Integer.parseInt(args[7]));
        config.setTieredStoreIndexFileMaxIndexNum(100_000);
        config.setTieredBackendServiceProvider(PosixFileSegment.class.getName());
        return config;
    }

    private static IndexStoreService index(FlatFileStore store, MessageStoreConfig config) {
        IndexStoreService index = new IndexStoreService(
            store.getFlatFileFactory(), MessageStoreUtil.getIndexFilePath(config.getBrokerName()));
        index.start();
        return index;
    }

    private static void write(FlatFileStore store, MessageStoreConfig config) throws Exception {
        IndexStoreService index = index(store, config);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Put put = Main.GSON.fromJson(line, Put.class);
            FlatMessageFile file = store.computeIfAbsent(
                new MessageQueue(put.topic, config.getBrokerName(), put.queueId));
            if (!file.isFlatFileInit()) {
                file.initOffset(put.queueOffset);
            }
            ByteBuffer record = ByteBuffer.wrap(Base64.getDecoder().decode(put.record));
            must(file.appendCommitLog(record));
            DispatchRequest request = new DispatchRequest(put.topic, put.queueId,
                file.getCommitLogMaxOffset() - record.remaining(), record.remaining(), put.tagsCode,
                MessageFormatUtil.getStoreTimeStamp(record), put.queueOffset, "", "", 0, 0, new HashMap<>());
            must(file.appendConsumeQueue(request));
            if (!file.commitAsync().join()) {
                throw new IllegalStateException("not committed");
            }
            file.flushMetadata();
            Map<String, String> properties = MessageFormatUtil.getProperties(record);
            Set<String> keys = new HashSet<>();
            for (String name : List.of(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, MessageConst.PROPERTY_KEYS)) {
                keys.addAll(List.of(properties.getOrDefault(name, "").split(MessageConst.KEY_SEPARATOR)));
            }
            keys.remove("");
            must(index.putKey(put.topic, (int) file.getTopicId(), put.queueId, keys, request.getCommitLogOffset(),
                request.getMsgSize(), request.getStoreTimestamp()));
        }
        index.forceUpload();
    }

    private static void query(FlatFileStore store, MessageStoreConfig config) throws Exception {
        IndexStoreService index = index(store, config);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Question question = Main.GSON.fromJson(line, Question.class);
            long topicId = store.getMetadataStore().getTopic(question.topic).getTopicId();
            for (IndexItem item : index.queryAsync(question.topic, question.key, 1000, 0, Long.MAX_VALUE).join()) {
                if (item.getTopicId() != topicId) {
                    continue;
                }
                FlatMessageFile file = store.getFlatFile(
                    new MessageQueue(question.topic, config.getBrokerName(), item.getQueueId()));
                MessageExt message = MessageDecoder.decode(
                    file.getCommitLogAsync(item.getOffset(), item.getSize()).join(), false, false);
                Map<String, Object> answer = new LinkedHashMap<>();
                answer.put("topic", message.getTopic());
                answer.put("key", question.key);
                answer.put("queueId", message.getQueueId());
                answer.put("queueOffset", message.getQueueOffset());
                Main.print(answer);
            }
        }
    }

    private static void must(AppendResult result) {
        if (result != AppendResult.SUCCESS) {
            throw new IllegalStateException(result.toString());
        }
    }

    private static void read(FlatFileStore store) {
        List<FlatMessageFile> files = new ArrayList<>(store.deepCopyFlatFileToList());
        files.sort(Comparator.comparing(file -> file.getMessageQueue().getTopic() + file.getMessageQueue().getQueueId()));
        for (FlatMessageFile file : files) {
            MessageQueue queue = file.getMessageQueue();
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("kind", "queue");
            line.put("topic", queue.getTopic());
            line.put("queueId", queue.getQueueId());
            line.put("min", file.getConsumeQueueMinOffset());
            line.put("max", file.getConsumeQueueCommitOffset());
            line.put("logMin", file.getCommitLogMinOffset());
            line.put("logMax", file.getCommitLogCommitOffset());
            Main.print(line);
            for (long at = Math.max(0, file.getConsumeQueueMinOffset()); at < file.getConsumeQueueCommitOffset(); at++) {
                Main.print(message(file, at));
            }
        }
    }

    private static Map<String, Object> message(FlatMessageFile file, long offset) {
        ByteBuffer entry = file.getConsumeQueueAsync(offset).join();
        MessageExt message = MessageDecoder.decode(file.getMessageAsync(offset).join(), true, false);
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", "message");
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("entryOffset", MessageFormatUtil.getCommitLogOffsetFromItem(entry));
        line.put("tagsCode", MessageFormatUtil.getTagCodeFromItem(entry));
        line.put("size", message.getStoreSize());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bodyCRC", message.getBodyCRC());
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();  // RocketMQ's decoder returns null for an empty body
        line.put("body", Base64.getEncoder().encodeToString(body));
        line.put("properties", message.getProperties());
        line.put("byTime", file.getQueueOffsetByTimeAsync(message.getStoreTimestamp(), BoundaryType.LOWER).join());
        return line;
    }
}
