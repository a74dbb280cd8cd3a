package mq.harness;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A name server and a broker on the directory. Requests are lines of standard input; its end halts everything. */
final class LiveBroker {
    private LiveBroker() { }

    static void run(Path directory, Spec spec) throws Exception {
        // As their own start-up does: without a version the name server accepts no topics from a broker.
        System.setProperty("rocketmq.remoting.version", Integer.toString(MQVersion.CURRENT_VERSION));
        Spec.Live live = spec.live;
        String address = "127.0.0.1:" + live.namesrvPort;
        NamesrvController namesrv = namesrv(directory, live);
        BrokerController broker = broker(directory, spec, address);
        while (namesrv.getRouteInfoManager().pickupTopicRouteData(live.topic) == null) {
            broker.registerBrokerAll(true, false, true);
            Thread.sleep(10);
        }
        Main.print(StoreReader.line("ready", "broker", live.brokerPort));
        Main.flush();

        LiveClient client = new LiveClient(broker, live, address);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            client.answer(Main.GSON.fromJson(line, Spec.Request.class));
            Main.flush();
        }
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
        Properties properties = new Properties();
        properties.putAll(spec.live.brokerConfig);
        MixAll.properties2Object(properties, config);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(spec.live.brokerPort);
        MessageStoreConfig store = Stores.config(directory, spec);
        BrokerController broker = controller(config, server, store, spec.live.authConfig);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not initialize");
        }
        broker.start();
        if (broker.getTopicConfigManager().selectTopicConfig(spec.live.topic) == null) {
            TopicConfig topic = new TopicConfig(spec.live.topic);
            topic.setReadQueueNums(spec.live.queues);
            topic.setWriteQueueNums(spec.live.queues);
            broker.getTopicConfigManager().updateTopicConfig(topic);
        }
        return broker;
    }

    private static BrokerController controller(
        BrokerConfig config, NettyServerConfig server, MessageStoreConfig store, Map<String, String> authConfig
    ) throws ReflectiveOperationException {
        NettyClientConfig client = new NettyClientConfig();
        client.setUseTLS(Boolean.getBoolean("tls.enable"));
        if (authConfig.isEmpty()) {
            return new BrokerController(config, server, client, store);
        }
        Class<?> kind = Class.forName("org.apache.rocketmq.auth.config.AuthConfig");
        Object auth = kind.getConstructor().newInstance();
        Properties properties = new Properties();
        properties.putAll(authConfig);
        MixAll.properties2Object(properties, auth);
        return BrokerController.class
            .getConstructor(BrokerConfig.class, NettyServerConfig.class, NettyClientConfig.class, MessageStoreConfig.class, kind)
            .newInstance(config, server, client, store, auth);
    }
}
