module hookstation.dev/client

go 1.23
