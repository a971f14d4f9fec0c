"""What requests about messages and deliveries look like, and what is shown of them."""
