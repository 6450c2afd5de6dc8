// Package sample has mutations that its test detects, and others that it does not.
package sample

// Clamp returns n, but not more than limit.
func Clamp(n, limit int) int {
	if n > limit {
		n = limit
	}
	return n
}

// Untested is called by no test.
func Untested(a, b bool) bool {
	return a && b
}

// Down counts down to 0: a change of it makes the loop endless.
func Down(n int) (steps int) {
	for ; n > 0; n-- {
		steps++
	}
	return steps
}
