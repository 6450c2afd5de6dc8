// Package audit compares the records of IPAMs and configurations with what kernels have, and makes
// findings: problems that are not conflicts yet. Its functions depend only on their arguments. They
// make no text, read no clock and access no tables.
package audit
