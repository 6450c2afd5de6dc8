// Package failing has a test that fails.
package failing

// Yes returns true.
func Yes() bool { return true }
