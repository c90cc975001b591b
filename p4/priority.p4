/*
 * A switch whose ports have eight strict priority queues, chosen by the DSCP of the packet.
 *
 * It forwards IPv4 and IPv6 by longest prefix and maps the DSCP to `standard_metadata.priority`, of which
 * BMv2's simple_switch serves 7 first and 0 last. The const table below is netsched/marking.py for the case
 * of eight queues, class c being priority 7 - c; tests/test_topologies.py compares the two. A code point that is
 * not in it is unmarked traffic, priority 0.
 */
#include <core.p4>
#include <v1model.p4>

const bit<16> TYPE_IPV4 = 0x0800;
const bit<16> TYPE_IPV6 = 0x86dd;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_len;
    bit<16> identification;
    bit<3>  flags;
    bit<13> frag_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv6_t {
    bit<4>   version;
    bit<6>   dscp;
    bit<2>   ecn;
    bit<20>  flow_label;
    bit<16>  payload_len;
    bit<8>   next_header;
    bit<8>   hop_limit;
    bit<128> src;
    bit<128> dst;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    ipv6_t     ipv6;
}

struct metadata_t {
    bit<6> dscp;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            TYPE_IPV4: ipv4;
            TYPE_IPV6: ipv6;
            default: accept;
        }
    }

    /* Options would stay in the payload, outside the 20 bytes of the checksum: Ingress drops such packets. */
    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.dscp = hdr.ipv4.dscp;
        transition accept;
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        meta.dscp = hdr.ipv6.dscp;
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(
            hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Ingress(inout headers_t hdr, inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    action drop() {
        mark_to_drop(standard_metadata);
    }

    action forward(bit<9> port, bit<48> next_hop) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = next_hop;
    }

    table ipv4_route {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; drop; }
        default_action = drop();
        size = 16384;
    }

    table ipv6_route {
        key = { hdr.ipv6.dst: lpm; }
        actions = { forward; drop; }
        default_action = drop();
        size = 16384;
    }

    action set_priority(bit<3> queue) {
        standard_metadata.priority = queue;
    }

    /* 44 is control traffic (acknowledgements, rendezvous): it shares the most urgent queue. */
    table dscp_priority {
        key = { meta.dscp: exact; }
        actions = { set_priority; }
        const default_action = set_priority(0);
        const entries = {
            44: set_priority(7);
            40: set_priority(7);
            36: set_priority(6);
            32: set_priority(5);
            20: set_priority(4);
            18: set_priority(3);
            16: set_priority(2);
             8: set_priority(1);
             0: set_priority(0);
        }
    }

    apply {
        if (standard_metadata.checksum_error == 1) {
            drop();
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && hdr.ipv4.ttl > 1) {
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
            dscp_priority.apply();
            ipv4_route.apply();
        } else if (hdr.ipv6.isValid() && hdr.ipv6.hop_limit > 1) {
            hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
            dscp_priority.apply();
            ipv6_route.apply();
        } else {
            drop();
        }
    }
}

control Egress(inout headers_t hdr, inout metadata_t meta,
               inout standard_metadata_t standard_metadata) {
    apply { }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
    }
}

V1Switch(Parse(), Verify(), Ingress(), Egress(), Compute(), Deparse()) main;
