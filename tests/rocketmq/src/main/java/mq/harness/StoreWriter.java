package mq.harness;

import java.io.IOException;
import java.net.InetAddress;
import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** Puts the messages of the spec in order, and prints RocketMQ's answer to each. */
final class StoreWriter {
    private StoreWriter() { }

    static void run(Path directory, Spec spec) throws Exception {
        DefaultMessageStore store = Stores.open(directory, spec);
        for (Spec.Put put : spec.puts) {
            print(put.batch == null ? Line.put(store, message(put)) : store.putMessages(batch(put)));
        }
        Stores.awaitDispatch(store);
        if (spec.exit.equals("halt")) {
            return;  // Main halts: abort stays, nothing is closed
        }
        store.shutdown();
    }

    private static void print(PutMessageResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", result.getPutMessageStatus().name());
        if (result.getAppendMessageResult() != null) {
            line.put("appendStatus", result.getAppendMessageResult().getStatus().name());
            line.put("msgId", result.getAppendMessageResult().getMsgId());
            line.put("physicalOffset", result.getAppendMessageResult().getWroteOffset());
            line.put("queueOffset", result.getAppendMessageResult().getLogicsOffset());
            line.put("storeTimestamp", result.getAppendMessageResult().getStoreTimestamp());
            line.put("bytes", result.getAppendMessageResult().getWroteBytes());
        }
        Main.print(line);
    }

    private static MessageExt message(Spec.Put put) throws IOException {
        MessageExt message = Line.message();
        envelope(put, message);
        byte[] body = Base64.getDecoder().decode(put.body);
        message.setSysFlag(message.getSysFlag() | put.transaction);
        message.setBody(put.compression == null ? body : Line.compress(message, body, put.compression));
        message.setFlag(put.flag);
        message.setReconsumeTimes(put.reconsumeTimes);
        message.setPreparedTransactionOffset(put.preparedTransactionOffset);
        MessageAccessor.setProperties(message, new HashMap<>(put.properties));
        return message;
    }

    private static MessageExtBatch batch(Spec.Put put) throws IOException {
        List<Message> messages = new ArrayList<>();
        for (Spec.Put one : put.batch) {
            Message message = new Message(put.topic, Base64.getDecoder().decode(one.body));
            message.setFlag(one.flag);
            one.properties.forEach((name, value) -> MessageAccessor.putProperty(message, name, value));
            messages.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        envelope(put, batch);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        return batch;
    }

    private static void envelope(Spec.Put put, MessageExt message) throws IOException {
        message.setTopic(put.topic);
        message.setQueueId(put.queueId);
        message.setBornTimestamp(put.bornTimestamp);
        InetAddress born = InetAddress.getByName(put.bornHost);
        InetAddress stored = InetAddress.getByName(put.storeHost);
        message.setBornHost(new InetSocketAddress(born, put.bornPort));
        message.setStoreHost(new InetSocketAddress(stored, put.storePort));
        if (born instanceof Inet6Address) {
            Line.bornHostIsV6(message);
        }
        if (stored instanceof Inet6Address) {
            Line.storeHostIsV6(message);
        }
    }
}
