package mq.harness;

import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * SQL92 expressions over sets of properties. One line for each expression: the parser's error, or one letter for each
 * set: T true, F false, N null, E an exception.
 */
final class Conditions {
    private Conditions() { }

    static void run(Spec spec) {
        for (String expression : spec.expressions) {
            Main.print(answer(expression, spec));
        }
    }

    private static Map<String, Object> answer(String expression, Spec spec) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(expression);
        } catch (MQFilterException e) {
            return Map.of("refused", String.valueOf(e.getCause()));
        }
        StringBuilder results = new StringBuilder();
        for (Map<String, String> properties : spec.propertySets) {
            results.append(letter(compiled, properties));
        }
        return Map.of("results", results.toString());
    }

    /** A broker treats anything thrown as no match. */
    private static char letter(Expression compiled, Map<String, String> properties) {
        try {
            Object value = compiled.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'N' : Boolean.TRUE.equals(value) ? 'T' : 'F';
        } catch (Throwable e) {
            return 'E';
        }
    }
}
