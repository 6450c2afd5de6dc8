package main

import (
	"bufio"
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

// pages measures the time for one page of owners through REST. It does not parse the page,
// because parsing takes longer than the aggregator may take.
func (c *crowd) pages(ctx context.Context) ([]row, error) {
	var took []time.Duration
	token, bytes := "", 0
	for range measuredPages {
		begin := time.Now()
		text, err := c.program.Text(ctx, fmt.Sprintf("/v1/owners?page_size=%d&page_token=%s", pageSize, token))
		took = append(took, time.Since(begin))
		if err != nil {
			return nil, err
		}
		next := nextPage.FindStringSubmatch(text)
		if owners := strings.Count(text, `"excluded":`); owners != pageSize || next == nil {
			return nil, fmt.Errorf("got a page of %d owners, want %d and a next one", owners, pageSize)
		}
		token, bytes = next[1], bytes+len(text)
	}
	p50, p99 := quantile(took, 0.5), quantile(took, 0.99)
	return []row{{
		fmt.Sprintf("page of %d out of %d owners through REST (%d kB), p50", pageSize, c.owners, bytes/measuredPages/1000),
		fmt.Sprintf("%s (p99 %s)", millis(p50), millis(p99)), "≤ 3 ms", p50 <= 3*time.Millisecond,
	}}, nil
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
			owners++
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
	}, nil
}
