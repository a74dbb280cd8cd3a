// Sends orders with RocketMQ's own client, as to any broker.
//
//   pyspark-mq serve /tmp/orders                                       # a name server and broker at 127.0.0.1:9876
//   spark-submit examples/count_orders.py --path /tmp/orders          # counts what comes, until Ctrl-C
//   cd examples/java_producer
//   mvn -q dependency:build-classpath -Dmdep.outputFile=classpath.txt
//   java -cp "$(cat classpath.txt)" OrderProducer.java 127.0.0.1:9876 1000

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

public class OrderProducer {
    private static final String[] STATES = {"open", "paid", "shipped"};

    public static void main(String[] args) throws Exception {
        int orders = Integer.parseInt(args[1]);
        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        SendResult last = null;
        for (int i = 0; i < orders; i++) {
            byte[] body = "{\"order\": %d, \"amount\": %d}".formatted(i, i % 100).getBytes(StandardCharsets.UTF_8);
            last = producer.send(new Message("orders", STATES[i % STATES.length], "o-" + i, body));
        }
        System.out.println(orders + " orders sent, the last one is " + last);
        producer.shutdown();
    }
}
