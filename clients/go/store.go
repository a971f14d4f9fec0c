package hookstation

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// keepFor is how long stores keep the id of a message: longer than the broker retries.
const keepFor = 7 * 24 * time.Hour

// Store stores which messages were handled. Implement your own to commit this together with a
// handler's effect.
type Store interface {
	// Claim returns nil if the message was handled, and a claim to settle if it is new. It returns a
	// [Retry] error while another goroutine or process handles the same message.
	Claim(ctx context.Context, messageID string) (Claim, error)
}

// Claim is the right to handle one message.
type Claim interface {
	// Done stores the message as handled.
	Done() error
	// Forget removes the claim, so that the message is handled when it is delivered again.
	Forget() error
}

// MemoryStore stores handled messages in memory: for tests, or a process that may lose them.
type MemoryStore struct {
	mutex sync.Mutex
	// Unix seconds at which a message was handled; 0 while it is being handled.
	states map[string]int64
	swept  time.Time
	// Called before a message counts as handled, with the lock held.
	save func(messageID string, at int64) error
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{states: map[string]int64{}} }

// Claim claims a message.
func (s *MemoryStore) Claim(_ context.Context, messageID string) (Claim, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.sweep(time.Now())
	at, isKnown := s.states[messageID]
	if isKnown && at == 0 {
		return nil, Retry(time.Second, "the same message is being handled")
	}
	if isKnown {
		return nil, nil
	}
	s.states[messageID] = 0
	return &memoryClaim{s, messageID}, nil
}

// sweep deletes old messages, once an hour.
func (s *MemoryStore) sweep(now time.Time) {
	if now.Sub(s.swept) < time.Hour {
		return
	}
	s.swept = now
	for messageID, at := range s.states {
		if at != 0 && now.Sub(time.Unix(at, 0)) > keepFor {
			delete(s.states, messageID)
		}
	}
}

type memoryClaim struct {
	store     *MemoryStore
	messageID string
}

func (c *memoryClaim) Done() error {
	c.store.mutex.Lock()
	defer c.store.mutex.Unlock()
	at := time.Now().Unix()
	if c.store.save != nil {
		if err := c.store.save(c.messageID, at); err != nil {
			delete(c.store.states, c.messageID)
			return err
		}
	}
	c.store.states[c.messageID] = at
	return nil
}

func (c *memoryClaim) Forget() error {
	c.store.mutex.Lock()
	defer c.store.mutex.Unlock()
	delete(c.store.states, c.messageID)
	return nil
}

// FileStore stores handled messages in a file, for one process at a time. They survive a kill of
// the process. Messages that were being handled are not in the file, so they are handled again.
type FileStore struct {
	*MemoryStore
	file *os.File
}

// OpenFileStore opens the file of a store, and creates it if it does not exist.
func OpenFileStore(name string) (*FileStore, error) {
	store := &FileStore{MemoryStore: NewMemoryStore()}
	if err := store.read(name); err != nil {
		return nil, err
	}
	if err := store.rewrite(name); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	store.file = file
	store.save = func(messageID string, at int64) error {
		if _, err := fmt.Fprintf(file, "%d %s\n", at, messageID); err != nil {
			return err
		}
		return file.Sync()
	}
	return store, nil
}

// Close closes the file.
func (s *FileStore) Close() error { return s.file.Close() }

func (s *FileStore) read(name string) error {
	file, err := os.Open(name)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		// A line that was cut off by a kill has no complete id; its message is handled again.
		text, messageID, _ := strings.Cut(lines.Text(), " ")
		if at, err := strconv.ParseInt(text, 10, 64); err == nil && at > 0 {
			s.states[messageID] = at
		}
	}
	s.sweep(time.Now())
	return lines.Err()
}

// rewrite rewrites the file with the kept messages only, so that it does not grow for ever.
func (s *FileStore) rewrite(name string) error {
	file, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	writer := bufio.NewWriter(file)
	for messageID, at := range s.states {
		fmt.Fprintf(writer, "%d %s\n", at, messageID)
	}
	if err := writer.Flush(); err != nil {
		file.Close()
		return err
	}
	if err := file.Sync(); err != nil {
		file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
