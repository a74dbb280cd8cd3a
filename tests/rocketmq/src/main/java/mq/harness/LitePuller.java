package mq.harness;

import java.util.Collection;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's own pull consumer, for comparison: reads messages from the beginning, and prints the time it took. */
public final class LitePuller {
    private LitePuller() { }

    /** Usage: 127.0.0.1:9876 topic messages */
    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        int wanted = Integer.parseInt(args[2]);
        // A new group begins at the first message. Seeking there would interrupt running pulls, after which a queue may
        // return nothing forever.
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("lite-pullers-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setNamesrvAddr(args[0]);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(32);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(args[1]);
        long begin = System.nanoTime();
        consumer.assign(queues);
        long bytes = 0;
        int read = 0;
        while (read < wanted) {
            for (MessageExt message : consumer.poll(1000)) {
                bytes += message.getBody().length;
                read++;
            }
        }
        Main.print(StoreReader.line("pulled", "messages", read, "bytes", bytes, "seconds", (System.nanoTime() - begin) / 1e9));
        Main.flush();
        Runtime.getRuntime().halt(0);
    }
}
