// Package wake wakes goroutines by channels that hold one token: several calls before the
// receiver looks count as one.
package wake

// Poke puts a token into a channel of capacity one, unless it already holds one.
func Poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
