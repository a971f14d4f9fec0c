// Command rest is the conformance driver that uses only the REST API.
package main

import "hookstation.dev/client/internal/driver"

func main() { driver.Main("go", nil) }
