// The driver of the AWS SDK for Go: each line names an operation and has its parameters.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

type asked struct {
	Op      string            `json:"op"`
	Input   json.RawMessage   `json:"input"`
	Query   map[string]string `json:"query"`
	Address string            `json:"address"`
}

func main() {
	settings, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		panic(err)
	}
	client := sqs.NewFromConfig(settings)
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var request asked
		if err := json.Unmarshal(line, &request); err != nil {
			panic(err)
		}
		answer, err := json.Marshal(answered(settings, client, request))
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", answer)
	}
}

func answered(settings aws.Config, client *sqs.Client, request asked) map[string]any {
	switch request.Op {
	case "hello":
		return map[string]any{"ok": map[string]string{"version": version()}}
	case "presign":
		address, err := presigned(settings, request)
		if err != nil {
			panic(err)
		}
		return map[string]any{"ok": map[string]string{"url": address}}
	}
	method := reflect.ValueOf(client).MethodByName(request.Op)
	input := reflect.New(method.Type().In(1).Elem())
	strict := json.NewDecoder(bytes.NewReader(request.Input))
	strict.DisallowUnknownFields()
	if err := strict.Decode(input.Interface()); err != nil {
		panic(err)
	}
	results := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
	if err, failed := results[1].Interface().(error); failed {
		return map[string]any{"error": described(err)}
	}
	if found, ok := results[0].Interface().(*sqs.ListDeadLetterSourceQueuesOutput); ok {
		// The one member that the service's model writes small.
		return map[string]any{"ok": map[string]any{"queueUrls": found.QueueUrls, "NextToken": found.NextToken}}
	}
	return map[string]any{"ok": results[0].Interface()}
}

func described(err error) map[string]any {
	found := map[string]any{"message": err.Error(), "class": fmt.Sprintf("%T", err)}
	var refused smithy.APIError
	if errors.As(err, &refused) {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", refused), "*types.")
		found["class"], found["code"] = strings.TrimSuffix(kind, "Exception"), refused.ErrorCode()
	}
	var answer *smithyhttp.ResponseError
	if errors.As(err, &answer) {
		found["status"] = answer.HTTPStatusCode()
	}
	return found
}

func presigned(settings aws.Config, request asked) (string, error) {
	query := url.Values{"X-Amz-Expires": {"300"}}
	for name, value := range request.Query {
		query.Set(name, value)
	}
	made, err := http.NewRequest(http.MethodGet, request.Address+"/?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	credentials, err := settings.Credentials.Retrieve(context.Background())
	if err != nil {
		return "", err
	}
	empty := sha256.Sum256(nil)
	address, _, err := v4.NewSigner().PresignHTTP(context.Background(), credentials, made,
		hex.EncodeToString(empty[:]), "sqs", settings.Region, time.Now())
	return address, err
}

// version is that of the module with the service's client.
func version() string {
	built, _ := debug.ReadBuildInfo()
	for _, module := range built.Deps {
		if module.Path == "github.com/aws/aws-sdk-go-v2/service/sqs" {
			return module.Version
		}
	}
	return ""
}
