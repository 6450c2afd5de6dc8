// Package wake wakes goroutines through channels that hold one token. Several calls count as
// one until the receiver takes the token.
package wake

// Poke puts a token into a channel of capacity one, unless it already holds one.
func Poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
