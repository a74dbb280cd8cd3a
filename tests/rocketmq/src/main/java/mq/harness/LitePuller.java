package mq.harness;

import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's own pull consumer, as a yardstick: reads so many messages from the beginning, and prints how long it took. */
public final class LitePuller {
    private static final int IDLE = 10; // seconds

    private LitePuller() { }

    /** Usage: 127.0.0.1:9876 topic messages */
    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        int wanted = Integer.parseInt(args[2]);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("lite-pullers");
        consumer.setNamesrvAddr(args[0]);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(32);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(args[1]);
        consumer.assign(queues);
        long begin = 0;
        long bytes = 0;
        int read = 0;
        int idle = IDLE;
        while (read < wanted) {
            if (idle == IDLE) { // at first; and where its pulls from before it sought went astray
                for (MessageQueue queue : queues) {
                    consumer.seekToBegin(queue);
                }
                idle = 0;
                read = 0;
                bytes = 0;
                begin = System.nanoTime();
            }
            List<MessageExt> messages = consumer.poll(1000);
            idle = messages.isEmpty() ? idle + 1 : 0;
            read += messages.size();
            for (MessageExt message : messages) {
                bytes += message.getBody().length;
            }
        }
        Main.print(StoreReader.line("pulled", "messages", read, "bytes", bytes, "seconds", (System.nanoTime() - begin) / 1e9));
        Main.flush();
        Runtime.getRuntime().halt(0);
    }
}
