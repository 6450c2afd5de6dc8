package report

import (
	"github.com/ipwitness/ipwitness/proto/form"
)

// A rule defines the valid values of a field of a report.
type rule struct {
	// text is the form of a string. Invalid strings are corrected and counted.
	text form.Form
	// sizes are the valid lengths of a bytes field. A message with another length is refused. If
	// must is set, a message with an invalid string is refused, too.
	sizes []int
	must  bool
}

// rules has a rule for each string and bytes field of a report. For a map field, it applies to keys
// and values.
var rules = map[string]rule{
	"Hello.node":    {text: form.Node, must: true},
	"Hello.boot_id": {text: form.ID, must: true},
	"Hello.netns":   {text: form.Digits, must: true},
	"Hello.version": {text: form.Text(128)},
	"Hello.kernel":  {text: form.Text(128)},

	"NamespaceRecord.netns": {text: form.Digits},

	"Workload.namespace":       {text: form.Label},
	"Workload.name":            {text: form.Name}, // for pods see nameOf
	"Workload.uid":             {text: form.ID},
	"Workload.container_id":    {text: form.ID},
	"Workload.source":          {text: form.Word(maxWord)},
	"Workload.process":         {text: form.Process},
	"Workload.sources":         {text: form.Word(maxWord)},
	"Workload.virtual_machine": {text: form.Subdomain},
	"Workload.phase":           {text: form.Word(maxWord)},
	"Workload.vip_program":     {text: form.Word(maxWord)},
	"Controller.kind":          {text: form.Word(maxWord)},
	"Controller.name":          {text: form.Subdomain},

	"Intended.address":   {text: form.Address},
	"Intended.source":    {text: form.Word(maxWord)},
	"Intended.interface": {text: form.Interface},

	"LinkRecord.name": {text: form.Link},

	"InterfaceRecord.name":           {text: form.Interface},
	"InterfaceRecord.kind":           {text: form.Word(maxWord)},
	"InterfaceRecord.mac":            {sizes: hardwareSizes},
	"InterfaceRecord.link":           {text: form.Link},
	"InterfaceRecord.host_interface": {text: form.Interface},
	"InterfaceRecord.vrf":            {text: form.Interface},

	"ClaimRecord.address": {sizes: addressSizes},
	"ClaimRecord.mac":     {sizes: hardwareSizes},
	"ClaimRecord.link":    {text: form.Link},
	"ClaimRecord.source":  {sizes: hardwareSizes},
	"ClaimRecord.network": {text: form.Name},

	"FloodingRecord.interface": {text: form.Interface},
	"StatusRecord.wire":        {text: form.Word(maxWord)},
	"StatusRecord.problems":    {text: form.Text(maxText)},
	"StatusRecord.runtime":     {text: form.Text(128)},
	"NodeName.name":            {text: form.Node},
	"NodeName.file":            {text: form.Path},
	"Port.interface":           {text: form.Interface},
	"Port.mode":                {text: form.Word(maxWord)},
	"StatusRecord.vip_program": {text: form.Word(maxWord)},

	"StatusRecord.unread_ipams":     {text: form.Word(maxWord)},
	"StatusRecord.unreadable_ipams": {text: form.Word(maxWord)},

	"PoolRecord.name":      {text: form.Path},
	"PoolRecord.ipam":      {text: form.Word(maxWord)},
	"PoolRecord.network":   {text: form.Name},
	"PoolRecord.gateways":  {sizes: addressSizes},
	"PoolRecord.problem":   {text: form.Text(maxText)},
	"PoolRecord.plugin":    {text: form.Name},
	"PoolRecord.device":    {text: form.Interface},
	"PoolRecord.config":    {text: form.Path},
	"PoolRecord.server":    {sizes: []int{0, 4}},
	"PoolRecord.client_id": {sizes: upTo(255)},
	"AddressRange.first":   {sizes: addressSizes},
	"AddressRange.last":    {sizes: addressSizes},

	"AllocationRecord.ipam":         {text: form.Word(maxWord)},
	"AllocationRecord.pool":         {text: form.Path},
	"AllocationRecord.address":      {sizes: addressSizes},
	"AllocationRecord.container_id": {text: form.ID},
	"AllocationRecord.interface":    {text: form.Interface},
	"AllocationRecord.namespace":    {text: form.Label},
	"AllocationRecord.pod":          {text: form.Subdomain},
	"AllocationRecord.mac":          {sizes: hardwareSizes},
	"AllocationRecord.former_mac":   {sizes: hardwareSizes},
	"AllocationRecord.hostname":     {text: form.Text(255)},
}

// The valid lengths of IP addresses and of hardware addresses. A hardware address may be empty, an
// EUI-64 (FireWire), 20 bytes long (InfiniBand), or have any other length up to MAX_ADDR_LEN.
var (
	addressSizes  = []int{4, 16}
	hardwareSizes = upTo(32)
)

func upTo(most int) (all []int) {
	for n := range most + 1 {
		all = append(all, n)
	}
	return all
}
