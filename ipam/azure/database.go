package azure

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// The buckets of azure-cns.db that are read, and the keys of the first of them (cns/state/db.go of
// Azure/azure-container-networking at 12532d3). Bucket endpoints has JSON by the ID of the container.
// Its names are those of azure-endpoints.json, but for the case of their letters.
const (
	metadataBucket, endpointsBucket = "metadata", "endpoints"
	schemaKey, authorityKey         = "schema_version", "authority"
	// schemaVersion is the only version of the format so far.
	schemaVersion = 1
	// boltAuthority is the value of authorityKey while azure-cns uses the database; jsonAuthority is that
	// after it has gone back to files.
	boltAuthority, jsonAuthority = "bolt", "json"
)

// errRolledBack is returned for a database that azure-cns does not use any more.
var errRolledBack = errors.New("azure-cns has gone back to files")

// parseDatabase parses azure-cns.db. It has the addresses in use.
func parseDatabase(db *bolt.DB) (content, error) {
	metadata, err := bucket(db, metadataBucket)
	if err != nil {
		return content{}, err
	}
	var version uint32
	var authority string
	err = metadata.Each(func(key, value []byte, _ *bolt.Bucket) error {
		switch {
		case string(key) == schemaKey && len(value) == 4:
			version = binary.LittleEndian.Uint32(value)
		case string(key) == authorityKey:
			authority = string(value)
		}
		return nil
	})
	switch {
	case err != nil:
		return content{}, err
	case version != schemaVersion:
		return content{}, fmt.Errorf("its format has version %d, and ipwitness knows version %d", version, schemaVersion)
	case authority == jsonAuthority:
		return content{}, errRolledBack
	case authority != boltAuthority:
		return content{}, fmt.Errorf("it does not say whether azure-cns uses it (%s is %q)", authorityKey, authority)
	}
	endpoints, err := bucket(db, endpointsBucket)
	if err != nil {
		return content{}, err
	}
	var c content
	err = endpoints.Each(func(key, value []byte, _ *bolt.Bucket) error {
		var e *endpointInfo
		if err := json.Unmarshal(value, &e); err != nil {
			return fmt.Errorf("parse endpoint %q: %w: its version of Azure CNI may not be known to ipwitness", key, err)
		}
		c.endpoint(string(key), e)
		if len(c.allocations) > maxAllocations {
			return fmt.Errorf("it exceeds the limit of %d allocations", maxAllocations)
		}
		return nil
	})
	if err != nil {
		return content{}, err
	}
	return c.sorted()
}

// bucket returns a bucket of the database.
func bucket(db *bolt.DB, name string) (*bolt.Bucket, error) {
	b, err := db.Root().Sub(name)
	if err == nil && b == nil {
		err = fmt.Errorf("it has no bucket %q: its version of Azure CNI is not known to ipwitness", name)
	}
	return b, err
}
