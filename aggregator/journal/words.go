package journal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxWords is the largest number of words that the writer knows. Others are not shared.
	maxWords = 1 << 15
	// maxRead is the largest number of words in each cache of the readers.
	maxRead = 1 << 14
)

// Words are the parts of records that many records of a segment share. A record has their numbers. A
// word keeps its number in the following segments, and a number never gets another meaning.
type words struct {
	segment uint32
	// next is the next number. Numbers begin with 1.
	next  uint32
	known map[string]word
}

// A word is known to the writer: its number, and the last segment that has it.
type word struct{ number, segment uint32 }

// open reads the words of the current segment.
func (w *words) open(s *store) error {
	*w = words{next: 1, known: make(map[string]word)}
	for _, seg := range s.list() {
		w.segment = seg.number
		clear(w.known)
		prefix := tablePrefix(seg.number, wordTable)
		err := s.scan(prefix, after(prefix), func(key, v []byte) error {
			if len(key) != prefixSize+4 {
				return errDamagedRecord
			}
			number := binary.BigEndian.Uint32(key[prefixSize:])
			w.next = max(w.next, number+1)
			w.known[string(v)] = word{number, seg.number}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// roll begins a new segment. Words that the segment before did not need are forgotten.
func (w *words) roll(segment uint32) {
	for text, one := range w.known {
		if one.segment != w.segment {
			delete(w.known, text)
		}
	}
	w.segment = segment
}

// number returns the number of a word, which it writes if the segment does not have it. ok is false if
// there are too many words.
func (w *words) number(b *pebble.Batch, text []byte) (number uint32, ok bool, err error) {
	one, known := w.known[string(text)]
	if known && one.segment == w.segment {
		return one.number, true, nil
	}
	if !known {
		if len(w.known) >= maxWords {
			return 0, false, nil
		}
		one.number = w.next
		w.next++
	}
	one.segment = w.segment
	w.known[string(text)] = one
	return one.number, true, b.Set(wordKey(w.segment, one.number), text, nil)
}

// segmentWords are the words of a segment.
type segmentWords struct {
	s       *store
	segment uint32
}

// shape returns the shape that is the word with a number.
func (l segmentWords) shape(number uint32) (*shape, error) {
	return remembered(l.s, l.s.shapes, number, func() (*shape, error) { return read(l, number, parseShape) })
}

// word returns the word with a number.
func (l segmentWords) word(number uint32) (string, error) {
	return remembered(l.s, l.s.words, number, func() (string, error) {
		return read(l, number, func(text []byte) (string, error) { return string(text), nil })
	})
}

// remembered returns what a cache of the store has of a number. It reads what is missing.
func remembered[T any](s *store, cache map[uint32]T, number uint32, read func() (T, error)) (T, error) {
	s.mu.RLock()
	one, known := cache[number]
	s.mu.RUnlock()
	if known {
		return one, nil
	}
	one, err := read()
	if err != nil {
		return one, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(cache) >= maxRead {
		clear(cache)
	}
	cache[number] = one
	return one, nil
}

// read reads the word with a number from the segment, and parses it.
func read[T any](l segmentWords, number uint32, parse func([]byte) (T, error)) (one T, err error) {
	v, closer, err := l.s.db.Get(wordKey(l.segment, number))
	if errors.Is(err, pebble.ErrNotFound) {
		err = fmt.Errorf("%w: word %d of segment %d is missing", errDamagedRecord, number, l.segment)
	}
	if err != nil {
		return one, err
	}
	one, err = parse(v)
	return one, errors.Join(err, closer.Close())
}
