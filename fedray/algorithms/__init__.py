"""Registry of algorithms by name."""

from fedray.algorithms.auxiliary import MOON, FedAvgKL, FedNTD, FedRCL
from fedray.algorithms.base import Algorithm
from fedray.algorithms.ditto import APFL, Ditto
from fedray.algorithms.feature_terms import FedDecorr, FedUV
from fedray.algorithms.fedadamw import FedAdamW, FedLADA, FedMuon
from fedray.algorithms.fedala import FedALA
from fedray.algorithms.fedas import FedAS
from fedray.algorithms.fedavg import FedAvg, FedProx, LocalAdamW, LocalMuon
from fedray.algorithms.feddisco import FedDisco
from fedray.algorithms.feddyn import FedDC, FedDyn
from fedray.algorithms.fedexp import FedExP
from fedray.algorithms.fedgela import FedAvgLA, FedGE, FedGELA
from fedray.algorithms.fedgen import FedGen
from fedray.algorithms.fedgloss import FedGloSS
from fedray.algorithms.fedgmt import FedGMT
from fedray.algorithms.fedlesam import FedLESAM, FedLESAMD, FedLESAMS
from fedray.algorithms.fednova import FedNova
from fedray.algorithms.fednsam import FedNSAM
from fedray.algorithms.fedproto import FedProto
from fedray.algorithms.fedrobust import FedRobust
from fedray.algorithms.fedsam import FedASAM, FedGAMMA, FedSAM, FedSpeed
from fedray.algorithms.fedsmoo import FedSMOO
from fedray.algorithms.fedsol import FedSOL, Projection
from fedray.algorithms.fedswa import FedMoSWA, FedSWA
from fedray.algorithms.fedtoga import FedTOGA
from fedray.algorithms.fedwmsam import FedWMSAM
from fedray.algorithms.heads import FedBABU, FedRep, FedRod
from fedray.algorithms.logit_adjustment import FedLC, FedRS
from fedray.algorithms.momentum import FedCM, MimeLite, MoFedSAM
from fedray.algorithms.partial import FedBN, FedPer, LGFedAvg
from fedray.algorithms.personal import KNNPer, LocalOnly, PerFedAvg
from fedray.algorithms.pfedme import PFedMe
from fedray.algorithms.scaffold import Scaffold
from fedray.algorithms.server_optimizers import FedACG, FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedray.components.plugins import resolve

__all__ = ["ALGORITHMS", "Algorithm", "algorithm"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        FedAvg,
        FedProx,
        FedNova,
        FedAvgM,
        FedAdam,
        FedYogi,
        FedACG,
        Scaffold,
        FedCM,
        MimeLite,
        MoFedSAM,
        FedDyn,
        FedDC,
        FedSAM,
        FedASAM,
        FedGAMMA,
        FedSpeed,
        FedSMOO,
        FedLESAM,
        FedLESAMS,
        FedLESAMD,
        FedTOGA,
        FedRobust,
        FedNTD,
        FedAvgKL,
        MOON,
        FedRCL,
        FedSOL,
        Projection,
        FedRS,
        FedLC,
        FedGELA,
        FedGE,
        FedAvgLA,
        FedRod,
        FedBABU,
        FedRep,
        FedGen,
        FedProto,
        PerFedAvg,
        KNNPer,
        LocalOnly,
        FedPer,
        LGFedAvg,
        FedBN,
        Ditto,
        PFedMe,
        APFL,
        FedALA,
        FedExP,
        FedDisco,
        FedGloSS,
        FedSWA,
        FedMoSWA,
        FedWMSAM,
        FedNSAM,
        FedAS,
        LocalAdamW,
        LocalMuon,
        FedAdamW,
        FedLADA,
        FedMuon,
        FedGMT,
        FedUV,
        FedDecorr,
        FedAdagrad,
    )
}


def algorithm(value: object) -> Algorithm:
    """Make the algorithm of a configuration's `algorithm` section."""
    return resolve("algorithm", value, ALGORITHMS, Algorithm)
