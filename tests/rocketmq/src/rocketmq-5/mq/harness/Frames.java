package mq.harness;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PullMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PullMessageResponseHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.remoting.protocol.header.namesrv.GetRouteInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.ProducerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

/** Frames as RocketMQ's own code encodes them, and its codes, for tests/golden/remoting. */
public final class Frames {
    private static int opaque;

    private Frames() { }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.remoting.version", "479");
        var out = System.out;
        System.setOut(System.err);
        out.println(Main.GSON.toJson(Map.of("kind", "codes", "requests", numbers(RequestCode.class),
            "responses", numbers(ResponseCode.class), "languages", languages())));
        for (SerializeType type : SerializeType.values()) {
            for (RemotingCommand command : commands()) {
                command.setSerializeTypeCurrentRPC(type);
                command.setOpaque(++opaque);
                ByteBuffer frame = command.encode();
                byte[] bytes = new byte[frame.remaining()];
                frame.get(bytes);
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("kind", "frame");
                line.put("serialization", type.name());
                line.put("code", command.getCode());
                line.put("opaque", command.getOpaque());
                line.put("flag", command.getFlag());
                line.put("version", command.getVersion());
                line.put("language", command.getLanguage().name());
                line.put("remark", command.getRemark());
                line.put("fields", command.getExtFields() == null ? Map.of() : new TreeMap<>(command.getExtFields()));
                line.put("body", command.getBody() == null ? "" : HexFormat.of().formatHex(command.getBody()));
                line.put("frame", HexFormat.of().formatHex(bytes));
                out.println(Main.GSON.toJson(line));
            }
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static List<RemotingCommand> commands() {
        RemotingCommand oneway = RemotingCommand.createRequestCommand(RequestCode.UNLOCK_BATCH_MQ, null);
        oneway.markOnewayRPC();
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setClientId("127.0.0.1@1");
        lock.setConsumerGroup("group");
        lock.setMqSet(new java.util.HashSet<>(List.of(new MessageQueue("orders", "broker-a", 3))));
        oneway.setBody(lock.encode());

        RemotingCommand heartbeat = RemotingCommand.createRequestCommand(RequestCode.HEART_BEAT, null);
        heartbeat.setLanguage(LanguageCode.GO);
        heartbeat.setBody(heartbeat().encode());

        RemotingCommand routes = RemotingCommand.createResponseCommand(ResponseCode.SUCCESS, null);
        routes.setBody(routes().encode());

        RemotingCommand failed = RemotingCommand.createResponseCommand(ResponseCode.TOPIC_NOT_EXIST,
            "topic \"café\" \uD83D\uDE00 is\tnot there\n\u0001");
        RemotingCommand pulled = RemotingCommand.createResponseCommand(PullMessageResponseHeader.class);
        PullMessageResponseHeader pull = (PullMessageResponseHeader) pulled.readCustomHeader();
        pull.setSuggestWhichBrokerId(0L);
        pull.setNextBeginOffset(8_000_000_000L);
        pull.setMinOffset(0L);
        pull.setMaxOffset(Long.MAX_VALUE);
        pulled.setCode(ResponseCode.SUCCESS);
        pulled.setRemark("FOUND");
        pulled.setBody(new byte[] {0, 1, 2, -1});

        RemotingCommand batch = send(RequestCode.SEND_BATCH_MESSAGE, true);
        Message first = new Message("orders", "paid", "key-1 key-2", "one".getBytes(StandardCharsets.UTF_8));
        first.setFlag(7);
        batch.setBody(MessageDecoder.encodeMessages(List.of(first, new Message("orders", new byte[0]))));
        return List.of(
            request(RequestCode.GET_ROUTEINFO_BY_TOPIC, route()), send(RequestCode.SEND_MESSAGE, false),
            send(RequestCode.SEND_MESSAGE_V2, false), batch, request(RequestCode.PULL_MESSAGE, pull()),
            request(RequestCode.END_TRANSACTION, end()), oneway, heartbeat, routes, failed, pulled,
            RemotingCommand.createResponseCommand(ResponseCode.SUCCESS, null));
    }

    private static RemotingCommand request(int code, CommandCustomHeader header) {
        return RemotingCommand.createRequestCommand(code, header);
    }

    private static GetRouteInfoRequestHeader route() {
        GetRouteInfoRequestHeader header = new GetRouteInfoRequestHeader();
        header.setTopic("orders");
        return header;
    }

    private static RemotingCommand send(int code, boolean isBatch) {
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("producers");
        header.setTopic("orders");
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(2);
        header.setSysFlag(1);
        header.setBornTimestamp(1_700_000_000_000L);
        header.setFlag(-5);
        header.setProperties("TAGS\u0001paid\u0002KEYS\u0001caf\u00e9\u0002");
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(isBatch);
        header.setMaxReconsumeTimes(16);
        boolean isShort = code != RequestCode.SEND_MESSAGE;
        RemotingCommand command = request(code,
            isShort ? SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(header) : header);
        command.setBody("body".getBytes(StandardCharsets.UTF_8));
        return command;
    }

    private static PullMessageRequestHeader pull() {
        PullMessageRequestHeader header = new PullMessageRequestHeader();
        header.setConsumerGroup("group");
        header.setTopic("orders");
        header.setQueueId(3);
        header.setQueueOffset(9_000_000_000L);
        header.setMaxMsgNums(32);
        header.setSysFlag(7);
        header.setCommitOffset(11L);
        header.setSuspendTimeoutMillis(15_000L);
        header.setSubscription("paid || shipped");
        header.setSubVersion(1_700_000_000_001L);
        header.setExpressionType("TAG");
        return header;
    }

    private static EndTransactionRequestHeader end() {
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setProducerGroup("producers");
        header.setTranStateTableOffset(5L);
        header.setCommitLogOffset(6L);
        header.setCommitOrRollback(8);
        header.setFromTransactionCheck(false);
        header.setMsgId("id");
        header.setTransactionId("transaction");
        return header;
    }

    private static HeartbeatData heartbeat() {
        SubscriptionData subscription = new SubscriptionData("orders", "paid");
        subscription.getTagsSet().add("paid");
        subscription.getCodeSet().add("paid".hashCode());
        subscription.setSubVersion(1_700_000_000_001L);
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("group");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSubscriptionDataSet(Set.of(subscription));
        ProducerData producer = new ProducerData();
        producer.setGroupName("producers");
        HeartbeatData data = new HeartbeatData();
        data.setClientID("127.0.0.1@1");
        data.setConsumerDataSet(Set.of(consumer));
        data.setProducerDataSet(Set.of(producer));
        return data;
    }

    private static TopicRouteData routes() {
        QueueData queues = new QueueData();
        queues.setBrokerName("broker-a");
        queues.setReadQueueNums(4);
        queues.setWriteQueueNums(4);
        queues.setPerm(6);
        TopicRouteData data = new TopicRouteData();
        data.setBrokerDatas(List.of(new BrokerData("DefaultCluster", "broker-a",
            new HashMap<>(Map.of(0L, "127.0.0.1:10911")))));
        data.setQueueDatas(List.of(queues));
        data.setFilterServerTable(new HashMap<>());
        return data;
    }

    private static Map<String, Integer> numbers(Class<?> of) throws IllegalAccessException {
        Map<String, Integer> found = new TreeMap<>();
        for (Field field : of.getFields()) {
            if (Modifier.isStatic(field.getModifiers()) && field.getType() == int.class) {
                found.put(field.getName(), field.getInt(null));
            }
        }
        return found;
    }

    private static Map<String, Integer> languages() {
        Map<String, Integer> found = new TreeMap<>();
        for (LanguageCode language : LanguageCode.values()) {
            found.put(language.name(), (int) language.getCode());
        }
        return found;
    }
}
