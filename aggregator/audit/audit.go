// Package audit compares what IPAM and configurations say with what the kernels have, and makes
// findings: what is wrong and not yet a conflict. Its functions go by the values that they are
// given. They make no text, read no clock and know no tables.
package audit
