import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.core.SdkField;
import software.amazon.awssdk.core.SdkPojo;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.traits.ListTrait;
import software.amazon.awssdk.core.traits.MapTrait;
import software.amazon.awssdk.core.util.SdkAutoConstructList;
import software.amazon.awssdk.core.util.SdkAutoConstructMap;
import software.amazon.awssdk.core.util.VersionInfo;
import software.amazon.awssdk.http.SdkHttpMethod;
import software.amazon.awssdk.http.SdkHttpRequest;
import software.amazon.awssdk.http.auth.aws.signer.AwsV4FamilyHttpSigner.AuthLocation;
import software.amazon.awssdk.http.auth.aws.signer.AwsV4HttpSigner;
import software.amazon.awssdk.regions.providers.DefaultAwsRegionProviderChain;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.SqsException;
import software.amazon.awssdk.utils.builder.SdkBuilder;

/** The driver of the AWS SDK for Java: each line names an operation and has its parameters. */
public final class Driver {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String MODEL = "software.amazon.awssdk.services.sqs.model.";

  public static void main(String[] arguments) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    try (SqsClient client = SqsClient.create()) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        JsonNode asked = JSON.readTree(line);
        byte[] answer = JSON.writeValueAsBytes(answer(client, asked));
        System.out.write(answer);
        System.out.write('\n');
        System.out.flush();
      }
    }
  }

  private static Object answer(SqsClient client, JsonNode asked) throws Exception {
    String operation = asked.get("op").asText();
    if (operation.equals("hello")) {
      return Map.of("ok", Map.of("version", VersionInfo.SDK_VERSION));
    }
    if (operation.equals("presign")) {
      return Map.of("ok", Map.of("url", presigned(asked.get("address").asText(), asked.get("query"))));
    }
    Class<?> kind = Class.forName(MODEL + operation + "Request");
    SdkPojo builder = (SdkPojo) kind.getMethod("builder").invoke(null);
    fill(builder, asked.get("input"));
    String name = Character.toLowerCase(operation.charAt(0)) + operation.substring(1);
    Method method = SqsClient.class.getMethod(name, kind);
    try {
      return Map.of("ok", show((SdkPojo) method.invoke(client, ((SdkBuilder<?, ?>) builder).build())));
    } catch (InvocationTargetException failure) {
      return Map.of("error", error(failure.getCause()));
    }
  }

  private static String presigned(String address, JsonNode query) {
    SdkHttpRequest.Builder made =
        SdkHttpRequest.builder().method(SdkHttpMethod.GET).uri(URI.create(address + "/"));
    query.fields().forEachRemaining(it -> made.putRawQueryParameter(it.getKey(), it.getValue().asText()));
    return AwsV4HttpSigner.create()
        .sign(
            r ->
                r.identity(DefaultCredentialsProvider.builder().build().resolveCredentials())
                    .request(made.build())
                    .putProperty(AwsV4HttpSigner.SERVICE_SIGNING_NAME, "sqs")
                    .putProperty(
                        AwsV4HttpSigner.REGION_NAME,
                        DefaultAwsRegionProviderChain.builder().build().getRegion().id())
                    .putProperty(AwsV4HttpSigner.AUTH_LOCATION, AuthLocation.QUERY_STRING)
                    .putProperty(AwsV4HttpSigner.EXPIRATION_DURATION, Duration.ofMinutes(5)))
        .request()
        .getUri()
        .toString();
  }

  private static Map<String, Object> error(Throwable failure) {
    Map<String, Object> found = new LinkedHashMap<>();
    found.put("class", failure.getClass().getSimpleName().replaceAll("Exception$", ""));
    found.put("message", String.valueOf(failure.getMessage()));
    if (failure instanceof SqsException refused && refused.awsErrorDetails() != null) {
      found.put("code", refused.awsErrorDetails().errorCode());
      found.put("status", refused.statusCode());
    } else if (!(failure instanceof SdkException)) {
      throw new IllegalStateException(failure);
    }
    return found;
  }

  private static void fill(SdkPojo builder, JsonNode given) {
    for (SdkField<?> field : builder.sdkFields()) {
      JsonNode value = given.get(field.locationName());
      if (value != null) {
        field.set(builder, read(field, value));
      }
    }
    given.fieldNames().forEachRemaining(name -> {
      if (builder.sdkFields().stream().noneMatch(field -> field.locationName().equals(name))) {
        throw new IllegalArgumentException("there is no parameter " + name);
      }
    });
  }

  private static Object read(SdkField<?> field, JsonNode value) {
    switch (field.marshallingType().getTargetClass().getSimpleName()) {
      case "List": {
        SdkField<?> member = field.getTrait(ListTrait.class).memberFieldInfo();
        List<Object> found = new ArrayList<>();
        value.forEach(one -> found.add(read(member, one)));
        return found;
      }
      case "Map": {
        SdkField<?> member = field.getTrait(MapTrait.class).valueFieldInfo();
        Map<String, Object> found = new LinkedHashMap<>();
        value.fields().forEachRemaining(it -> found.put(it.getKey(), read(member, it.getValue())));
        return found;
      }
      case "SdkPojo": {
        SdkPojo builder = field.constructor().get();
        fill(builder, value);
        return ((SdkBuilder<?, ?>) builder).build();
      }
      case "SdkBytes":
        return SdkBytes.fromByteArray(Base64.getDecoder().decode(value.asText()));
      case "Integer":
        return value.asInt();
      case "Boolean":
        return value.asBoolean();
      default:
        return value.asText();
    }
  }

  private static Object show(Object value) {
    if (value instanceof SdkBytes bytes) {
      return Base64.getEncoder().encodeToString(bytes.asByteArray());
    }
    if (value instanceof List<?> list) {
      return list.stream().map(Driver::show).toList();
    }
    if (value instanceof Map<?, ?> map) {
      Map<String, Object> found = new LinkedHashMap<>();
      map.forEach((name, one) -> found.put(name.toString(), show(one)));
      return found;
    }
    if (value instanceof SdkPojo pojo) {
      Map<String, Object> found = new LinkedHashMap<>();
      for (SdkField<?> field : pojo.sdkFields()) {
        Object one = field.getValueOrDefault(pojo);
        // The SDK makes these where the answer has nothing.
        if (one != null && !(one instanceof SdkAutoConstructList) && !(one instanceof SdkAutoConstructMap)) {
          found.put(field.locationName(), show(one));
        }
      }
      return found;
    }
    return value;
  }
}
