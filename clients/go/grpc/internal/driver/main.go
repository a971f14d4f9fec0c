// Command driver is the conformance driver that receives and settles over gRPC streams.
package main

import (
	"log"

	hookstationgrpc "hookstation.dev/client/grpc"
	"hookstation.dev/client/internal/driver"
)

func main() {
	transport, err := hookstationgrpc.New()
	if err != nil {
		log.Fatal(err)
	}
	driver.Main("go-grpc", transport)
}
