module github.com/ipwitness/ipwitness/tools/release

go 1.26.8
