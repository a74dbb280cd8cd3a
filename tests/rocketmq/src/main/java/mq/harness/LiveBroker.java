package mq.harness;

import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A name server, a broker on the directory and a client that sends to it, until standard input closes. */
final class LiveBroker {
    private LiveBroker() { }

    static void run(Path directory, Spec spec) throws Exception {
        Spec.Live live = spec.live;
        String address = "127.0.0.1:" + live.namesrvPort;
        NamesrvController namesrv = namesrv(directory, live);
        BrokerController broker = broker(directory, spec, address);
        DefaultMQProducer producer = new DefaultMQProducer("harness");
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        while (namesrv.getRouteInfoManager().pickupTopicRouteData(live.topic) == null) {
            broker.registerBrokerAll(true, false, true);  // the first registrations may come without topics
            Thread.sleep(200);
        }
        Main.print(StoreReader.line("ready", "broker", live.brokerPort));
        Main.flush();

        Thread sender = new Thread(() -> send(producer, live), "sender");
        sender.setDaemon(true);
        sender.start();
        while (System.in.read() >= 0) {
            // whoever started this closes standard input to end it
        }
        sender.interrupt();
        sender.join();
        producer.shutdown();
        broker.shutdown();
        namesrv.shutdown();
    }

    private static void send(DefaultMQProducer producer, Spec.Live live) {
        long nanosEach = (long) (1e9 / live.perSecond);
        long due = System.nanoTime();
        try {
            for (int i = 0; i < live.messages && !Thread.interrupted(); i++) {
                SendResult result = producer.send(liveMessage(live, i));
                Main.print(StoreReader.line("sent", "number", i, "queueId", result.getMessageQueue().getQueueId(),
                    "queueOffset", result.getQueueOffset(), "msgId", result.getMsgId(),
                    "offsetMsgId", result.getOffsetMsgId(), "status", result.getSendStatus().name()));
                Main.flush();
                due += nanosEach;
                LockSupport.parkNanos(due - System.nanoTime());
            }
            Main.print(StoreReader.line("done"));
        } catch (InterruptedException e) {
            Main.print(StoreReader.line("stopped"));
        } catch (Exception e) {
            Main.print(StoreReader.line("failed", "why", e.toString()));
        }
        Main.flush();
    }

    private static Message liveMessage(Spec.Live live, int number) {
        byte[] body = new byte[Math.max(4, live.bodyBytes)];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) (number >>> (i % 4 * 8));
        }
        Message message = new Message(live.topic, "tag-" + number % 3, "key-" + number, body);
        message.putUserProperty("number", "" + number);
        return message;
    }

    private static NamesrvController namesrv(Path directory, Spec.Live live) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(directory.resolve("namesrv/kvConfig.json").toString());
        config.setConfigStorePath(directory.resolve("namesrv/namesrv.properties").toString());
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(live.namesrvPort);
        NamesrvController namesrv = new NamesrvController(config, server);
        if (!namesrv.initialize()) {
            throw new IllegalStateException("the name server does not initialize");
        }
        namesrv.start();
        return namesrv;
    }

    private static BrokerController broker(Path directory, Spec spec, String namesrv) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName("harness");
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        config.setNamesrvAddr(namesrv);
        config.setEnablePropertyFilter(true);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(spec.live.brokerPort);
        MessageStoreConfig store = Stores.config(directory, spec);
        BrokerController broker = new BrokerController(config, server, new NettyClientConfig(), store);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not initialize");
        }
        broker.start();
        TopicConfig topic = new TopicConfig(spec.live.topic);
        topic.setReadQueueNums(spec.live.queues);
        topic.setWriteQueueNums(spec.live.queues);
        broker.getTopicConfigManager().updateTopicConfig(topic);
        return broker;
    }
}
