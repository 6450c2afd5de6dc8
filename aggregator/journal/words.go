package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxWords is the largest number of words that the writer knows. Others are not shared.
	maxWords = 1 << 15
	// maxWordsRead is the largest number of words in the cache of the readers.
	maxWordsRead = 1 << 16
	// maxShapesRead is the largest number of shapes in the cache of the readers.
	maxShapesRead = 1 << 12
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
	s := l.s
	s.mu.RLock()
	like, known := s.shapes[number]
	s.mu.RUnlock()
	if known {
		return like, nil
	}
	text, err := l.word(number)
	if err != nil {
		return nil, err
	}
	if like, err = parseShape(text); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.shapes) >= maxShapesRead {
		clear(s.shapes)
	}
	s.shapes[number] = like
	return like, nil
}

// word returns the word with a number.
func (l segmentWords) word(number uint32) ([]byte, error) {
	s, segment := l.s, l.segment
	s.mu.RLock()
	text, known := s.words[number]
	s.mu.RUnlock()
	if known {
		return text, nil
	}
	v, closer, err := s.db.Get(wordKey(segment, number))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("%w: word %d of segment %d is missing", errDamagedRecord, number, segment)
	}
	if err != nil {
		return nil, err
	}
	text = bytes.Clone(v)
	if err := closer.Close(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.words) >= maxWordsRead {
		clear(s.words)
	}
	s.words[number] = text
	return text, nil
}
