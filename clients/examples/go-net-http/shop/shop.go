// Package shop stores orders in a file, one line of JSON each.
package shop

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"sync"
)

// Order is a customer's order.
type Order struct {
	ID       int    `json:"id"`
	Article  string `json:"article"`
	Quantity int    `json:"quantity,omitempty"`
}

type line struct {
	Message string `json:"message,omitempty"`
	Order   Order  `json:"order"`
}

// Shop has the orders of one file.
type Shop struct {
	mutex   sync.Mutex
	file    *os.File
	orders  map[int]Order
	handled map[string]bool
}

// Open reads the orders of a file, and creates it if it does not exist.
func Open(name string) (*Shop, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	shop := &Shop{file: file, orders: map[int]Order{}, handled: map[string]bool{}}
	var end int64
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var one line
		if json.Unmarshal(lines.Bytes(), &one) != nil {
			break // incomplete after a kill; the next line replaces it
		}
		end += int64(len(lines.Bytes())) + 1
		shop.keep(one)
	}
	_, err = file.Seek(end, 0)
	return shop, err
}

// Accept stores an order and, unless it is "", the id of the message that brought it.
func (s *Shop) Accept(order Order, message string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	one := line{message, order}
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if _, err := s.file.Write(append(text, '\n')); err != nil {
		return err
	}
	s.keep(one)
	return nil
}

// IsHandled reports whether an order of this message was stored.
func (s *Shop) IsHandled(message string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.handled[message]
}

// ServeHTTP answers with the numbers of all orders.
func (s *Shop) ServeHTTP(response http.ResponseWriter, _ *http.Request) {
	s.mutex.Lock()
	ids := []int{}
	for id := range s.orders {
		ids = append(ids, id)
	}
	s.mutex.Unlock()
	slices.Sort(ids)
	_ = json.NewEncoder(response).Encode(ids) // the client has disconnected
}

func (s *Shop) keep(one line) {
	s.orders[one.Order.ID] = one.Order
	s.handled[one.Message] = one.Message != ""
}
