package hookstation

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Tolerance is the largest difference of a webhook's timestamp, as Standard Webhooks recommends.
const Tolerance = 5 * time.Minute

const secretPrefix = "whsec_"

// Sign returns the signature of a body for the header webhook-signature: "v1," and base64 (Standard
// Webhooks 1.0.0, HMAC-SHA256). The secret is "whsec_" and base64.
func Sign(secret, messageID string, timestamp time.Time, body []byte) (string, error) {
	key, err := keyOf(secret)
	if err != nil {
		return "", err
	}
	return signature(key, messageID, strconv.FormatInt(timestamp.Unix(), 10), body), nil
}

// Verify checks that a webhook was signed with one of the secrets within the last five minutes, and
// returns its webhook-id. The body is the exact bytes of the request. It returns [ErrSignature] if
// no signature matches or the timestamp differs too much, and another error if a secret is invalid.
func Verify(header http.Header, body []byte, secrets ...string) (string, error) {
	return Verifier{Secrets: secrets}.Verify(header, body)
}

// Verifier verifies webhooks with other settings.
type Verifier struct {
	// Secrets are the signing secrets, several during a rotation.
	Secrets []string
	// Tolerance is the largest difference of the timestamp; 0 means [Tolerance].
	Tolerance time.Duration
	// Now returns the time; nil means [time.Now].
	Now func() time.Time
}

// Verify checks a webhook like the function [Verify].
func (v Verifier) Verify(header http.Header, body []byte) (string, error) {
	if len(v.Secrets) == 0 {
		return "", errors.New("hookstation: there is no signing secret")
	}
	messageID, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	signatures := header.Get("webhook-signature")
	if messageID == "" || timestamp == "" || signatures == "" {
		return "", fmt.Errorf("%w: a webhook- header is missing", ErrSignature)
	}
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || strings.Trim(timestamp, "0123456789") != "" {
		return "", fmt.Errorf("%w: webhook-timestamp is not a whole number of seconds", ErrSignature)
	}
	tolerance, now := v.Tolerance, time.Now
	if tolerance == 0 {
		tolerance = Tolerance
	}
	if v.Now != nil {
		now = v.Now
	}
	if off := now().Sub(time.Unix(at, 0)); off.Abs() > tolerance {
		return "", fmt.Errorf(
			"%w: the timestamp is %.0f s off; the limit is %.0f s",
			ErrSignature, off.Seconds(), tolerance.Seconds(),
		)
	}
	for _, secret := range v.Secrets {
		key, err := keyOf(secret)
		if err != nil {
			return "", err
		}
		expected := []byte(signature(key, messageID, timestamp, body))
		for _, given := range strings.Split(signatures, " ") {
			if hmac.Equal(expected, []byte(given)) {
				return messageID, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no signature matches", ErrSignature)
}

func signature(key []byte, messageID, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.", messageID, timestamp)
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func keyOf(secret string) ([]byte, error) {
	encoded := strings.TrimRight(strings.TrimPrefix(secret, secretPrefix), "=")
	key, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errors.New("hookstation: the secret is not base64 after whsec_")
	}
	if len(key) == 0 {
		// Anybody could sign with an empty key.
		return nil, errors.New("hookstation: the secret is empty")
	}
	return key, nil
}
