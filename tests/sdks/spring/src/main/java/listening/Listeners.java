package listening;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.awspring.cloud.sqs.annotation.SqsListener;
import io.awspring.cloud.sqs.listener.Visibility;
import io.awspring.cloud.sqs.listener.acknowledgement.Acknowledgement;
import io.awspring.cloud.sqs.operations.SqsTemplate;
import java.time.Duration;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.BooleanSupplier;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;

/** Listens with Spring Cloud AWS; prints one line of JSON for each check. */
@SpringBootApplication
public class Listeners {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long PATIENCE_MS = 60_000;
  private static final String PREFIX = System.getenv("QUEUE");

  public static void main(String[] arguments) throws Exception {
    SpringApplication application = new SpringApplication(Listeners.class);
    application.setDefaultProperties(
        Map.of(
            "queue", PREFIX,
            "spring.main.banner-mode", "off",
            "spring.main.web-application-type", "none",
            "logging.level.root", "WARN"));
    ConfigurableApplicationContext context = application.run(arguments);
    say(Map.of("version", SqsListener.class.getPackage().getImplementationVersion()));
    Checks checks = context.getBean(Checks.class);
    check("messages", checks::messages);
    check("retries", checks::retries);
    check("batches", checks::batches);
    check("acknowledgement by hand", checks::acknowledgement);
    check("message groups", checks::groups);
    check("template", checks::template);
    System.exit(SpringApplication.exit(context));
  }

  private interface Check {
    void run() throws Exception;
  }

  private static void check(String name, Check check) throws Exception {
    Map<String, Object> said = new LinkedHashMap<>(Map.of("check", name, "ok", true));
    try {
      check.run();
    } catch (Exception | AssertionError failure) {
      said.put("ok", false);
      said.put("reason", failure.toString());
    }
    say(said);
  }

  private static void say(Map<String, ?> said) throws Exception {
    System.out.println(JSON.writeValueAsString(said));
  }

  @Bean
  Heard heard() {
    return new Heard();
  }

  /** What the listeners received. */
  static class Heard {
    final List<String> messages = new CopyOnWriteArrayList<>();
    final List<String> retries = new CopyOnWriteArrayList<>();
    final List<String> batches = new CopyOnWriteArrayList<>();
    final List<String> byHand = new CopyOnWriteArrayList<>();
    final List<String> groups = new CopyOnWriteArrayList<>();
  }

  @Component
  static class Receiving {
    private final Heard heard;

    Receiving(Heard heard) {
      this.heard = heard;
    }

    @SqsListener("${queue}-messages")
    void message(String body, @Header("kind") String kind) {
      heard.messages.add(body + " " + kind);
    }

    @SqsListener(queueNames = "${queue}-retries", messageVisibilitySeconds = "2")
    void retry(String body, @Header("Sqs_Msa_ApproximateReceiveCount") String count) {
      heard.retries.add(count);
      if (heard.retries.size() == 1) {
        throw new IllegalStateException("the first try fails");
      }
    }

    @SqsListener(queueNames = "${queue}-batches", maxMessagesPerPoll = "10")
    void batch(List<Message<String>> messages) {
      messages.forEach(message -> heard.batches.add(message.getPayload()));
    }

    @SqsListener(
        queueNames = "${queue}-by-hand",
        acknowledgementMode = "MANUAL",
        messageVisibilitySeconds = "600")
    void byHand(String body, Visibility visibility, Acknowledgement acknowledgement) {
      heard.byHand.add(body);
      if (heard.byHand.size() == 1) {
        visibility.changeTo(1200);
        visibility.changeTo(0);
      } else {
        acknowledgement.acknowledge();
      }
    }

    @SqsListener(queueNames = "${queue}-groups.fifo", messageVisibilitySeconds = "2")
    void group(String body) {
      heard.groups.add(body);
      if (heard.groups.size() == 2) {
        throw new IllegalStateException("this try fails");
      }
    }
  }

  @Component
  static class Checks {
    private final SqsTemplate template;
    private final SqsAsyncClient client;
    private final Heard heard;

    Checks(SqsTemplate template, SqsAsyncClient client, Heard heard) {
      this.template = template;
      this.client = client;
      this.heard = heard;
    }

    void messages() {
      template.send(to -> to.queue(PREFIX + "-messages").payload("one").header("kind", "x"));
      template.send(to -> to.queue(PREFIX + "-messages").payload("two").header("kind", "x"));
      await(() -> heard.messages.size() >= 2, heard.messages);
      expect(heard.messages.stream().sorted().toList().equals(List.of("one x", "two x")), heard.messages);
      awaitEmpty("-messages");
    }

    void retries() {
      template.send(PREFIX + "-retries", "x");
      await(() -> heard.retries.size() >= 2, heard.retries);
      expect(heard.retries.equals(List.of("1", "2")), heard.retries);
      awaitEmpty("-retries");
    }

    void batches() {
      Collection<Message<String>> messages =
          List.of("a", "b", "c").stream().map(it -> MessageBuilder.withPayload(it).build()).toList();
      int sent = template.sendMany(PREFIX + "-batches", messages).successful().size();
      expect(sent == 3, sent);
      await(() -> heard.batches.size() >= 3, heard.batches);
      awaitEmpty("-batches");
    }

    void acknowledgement() {
      template.send(PREFIX + "-by-hand", "x");
      await(() -> heard.byHand.size() >= 2, heard.byHand);
      awaitEmpty("-by-hand");
    }

    void groups() {
      for (String body : List.of("1", "2", "3")) {
        template.send(
            to ->
                to.queue(PREFIX + "-groups.fifo")
                    .payload(body)
                    .messageGroupId("a")
                    .messageDeduplicationId(body));
      }
      await(() -> heard.groups.size() >= 4, heard.groups);
      expect(heard.groups.equals(List.of("1", "2", "2", "3")), heard.groups);
      awaitEmpty("-groups.fifo");
    }

    void template() {
      template.send(PREFIX + "-template", "x");
      Message<?> got =
          template
              .receive(from -> from.queue(PREFIX + "-template").pollTimeout(Duration.ofSeconds(20)))
              .orElseThrow();
      expect(got.getPayload().equals("x"), got);
      expect(got.getHeaders().getId() != null, got);
      awaitEmpty("-template");
    }

    private void awaitEmpty(String queue) {
      String url = client.getQueueUrl(it -> it.queueName(PREFIX + queue)).join().queueUrl();
      QueueAttributeName[] counts = {
        QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES,
        QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE,
      };
      await(
          () ->
              client
                  .getQueueAttributes(it -> it.queueUrl(url).attributeNames(counts))
                  .join()
                  .attributes()
                  .values()
                  .stream()
                  .allMatch("0"::equals),
          queue);
    }

    private static void await(BooleanSupplier isDone, Object shown) {
      long end = System.currentTimeMillis() + PATIENCE_MS;
      while (!isDone.getAsBoolean()) {
        expect(System.currentTimeMillis() < end, "not done: " + shown);
        try {
          Thread.sleep(50);
        } catch (InterruptedException interrupted) {
          throw new IllegalStateException(interrupted);
        }
      }
    }

    private static void expect(boolean holds, Object shown) {
      if (!holds) {
        throw new AssertionError(shown);
      }
    }
  }
}
