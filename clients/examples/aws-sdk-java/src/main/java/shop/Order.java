package shop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

/** The body of a message. */
record Order(int order, String article) {
  private static final ObjectMapper JSON = new ObjectMapper();

  static Order read(String body) throws JsonProcessingException {
    return JSON.readValue(body, Order.class);
  }

  String write() throws JsonProcessingException {
    return JSON.writeValueAsString(this);
  }
}
