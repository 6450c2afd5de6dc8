// Package audit compares the records of IPAMs and configurations with the addresses in kernels, and
// makes findings: problems that are not conflicts yet. Its functions depend only on their
// arguments. They make no text, read no clock and access no tables.
package audit
