package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

const (
	// measuredPages is the number of pages that are read, with pageSize owners each.
	measuredPages, pageSize = 100, 500
	// watchPatience limits the time for a watch to send all owners.
	watchPatience = 10 * time.Minute
)

var nextPage = regexp.MustCompile(`"nextPageToken":\s*"([^"]+)"`)

// pages measures the time for one page of owners through REST: from the request, on an open
// connection, until the last byte of the answer is read. The client decodes the pages only after
// the measurement, because decoding takes longer than the aggregator may take.
func (c *crowd) pages(ctx context.Context) ([]row, error) {
	var took []time.Duration
	var page bytes.Buffer
	var began time.Duration // CPU
	client := c.Client()
	defer client.CloseIdleConnections()
	token, size := "", 0
	for i := range 1 + measuredPages { // the first one opens the connection
		begin := time.Now()
		if err := get(ctx, client, fmt.Sprintf("/v1/owners?page_size=%d&page_token=%s", pageSize, token), &page); err != nil {
			return nil, err
		}
		whole := time.Since(begin)
		next := nextPage.FindSubmatch(page.Bytes())
		if owners := bytes.Count(page.Bytes(), []byte(`"excluded":`)); owners != pageSize || next == nil {
			return nil, fmt.Errorf("got a page of %d owners, want %d and a next page", owners, pageSize)
		}
		token = string(next[1])
		if i > 0 {
			took, size = append(took, whole), size+page.Len()
			continue
		}
		var err error
		if began, err = c.cpu(); err != nil {
			return nil, err
		}
	}
	used, err := c.cpu()
	if err != nil {
		return nil, err
	}
	p50, p99 := quantile(took, 0.5), quantile(took, 0.99)
	return []row{
		{
			fmt.Sprintf("page of %d out of %d owners through REST (%d kB), request to last byte, p50", pageSize, c.owners, size/measuredPages/1000),
			fmt.Sprintf("%s (p99 %s)", millis(p50), millis(p99)), "≤ 3 ms", p50 <= 3*time.Millisecond,
		},
		{"  CPU of the aggregator for each page", millis((used - began) / measuredPages), "", true},
	}, nil
}

// get reads an answer completely.
func get(ctx context.Context, client *http.Client, path string, into *bytes.Buffer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, netlab.Server+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	into.Reset()
	if _, err := into.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, into)
	}
	return nil
}

// watch measures a watch of all owners through REST, from the request to its first line
// and to the bookmark after the last owner. It does not parse the owners.
func (c *crowd) watch(ctx context.Context) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, netlab.Server+"/v1/owners:watch", nil)
	if err != nil {
		return nil, err
	}
	before, err := c.rss()
	if err != nil {
		return nil, err
	}
	most := before
	begin := time.Now()
	resp, err := c.Client().Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var first, all time.Duration
	owners, inside := 0, true
	for lines := bufio.NewReaderSize(resp.Body, 1<<20); inside; {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read watch after %d owners: %w", owners, err)
		}
		if first == 0 {
			first = time.Since(begin)
		}
		if head := string(line[:min(len(line), 64)]); strings.Contains(head, `"ADDED"`) {
			if owners++; owners%(c.owners/20) == 0 {
				now, err := c.rss()
				if err != nil {
					return nil, err
				}
				most = max(most, now)
			}
		} else if strings.Contains(head, `"BOOKMARK"`) {
			inside = false
		}
	}
	all = time.Since(begin)
	measured := fmt.Sprintf("%.2f s", all.Seconds())
	if inside || owners != c.owners {
		measured = fmt.Sprintf("%d owners after %.0f s", owners, all.Seconds())
	}
	return []row{
		{fmt.Sprintf("watch of %d owners through REST: first line", c.owners), millis(first), "≤ 50 ms", first > 0 && first <= 50*time.Millisecond},
		{"  all lines", measured, "≤ 10 s", !inside && owners == c.owners && all <= 10*time.Second},
		{"  maximum growth of the aggregator's RSS meanwhile", fmt.Sprintf("%.0f MiB of %.0f", most-before, most), "", true},
	}, nil
}
