// Package live has the present as messages of the API, and tells subscribers how it changes. A
// Converter makes the messages, Events publishes changes on buses, and a Notifier writes them to the log
// and to Kubernetes as Events. Here are also the coverage, the acknowledgements, the metrics, and what the
// journal recalls after a start. It decides nothing.
package live
