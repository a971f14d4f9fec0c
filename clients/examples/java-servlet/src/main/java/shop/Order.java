package shop;

/** An order; {@code id} is 0 if the body has none. */
record Order(long id, String article, int quantity) {}
