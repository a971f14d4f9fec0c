module shop.example

go 1.23

require hookstation.dev/client v0.0.0

replace hookstation.dev/client => ../../go
